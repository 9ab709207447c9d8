#include "cli/fit_frontier.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "cli/calibration.h"
#include "cli/fit_measures.h"
#include "cli/output.h"
#include "core/error.h"
#include "core/files.h"
#include "core/text.h"
#include "fit/made_file.h"
#include "hub/resolve.h"
#include "model/accounting.h"
#include "model/load.h"
#include "report/report.h"

namespace refold::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Where everything goes.
struct Places {
    fs::path folder;
    std::string page;

    explicit Places(const std::string& output) : folder(fs::path(output).lexically_normal()) {
        if (!folder.has_filename()) folder = folder.parent_path();
        page = folder.string() + ".html";
    }
    std::string file(const NamedSize& size) const {
        return (folder / fmt::format("{}-{}.gguf", folder.filename().string(), size.name)).string();
    }
    std::string measures() const { return (folder / "measures.json").string(); }
};

struct Made {
    NamedSize size;
    std::string path, inputs;
    std::optional<FitRecord> record;
};

// Makes the files that are not there yet, from small to large.
void make_files(const FitArguments& a, const FitInput& input, const Calibration& calibration, Work& work,
                std::vector<Made>& files) {
    const auto missing = [](const Made& file) { return !file.record; };
    if (std::ranges::none_of(files, missing)) return;
    Fit fit(input.model, calibration, work, input.options);
    // As in the run that was interrupted.
    if (const auto kept = std::ranges::find_if_not(files, missing); kept != files.end())
        fit.use(kept->record->factors);
    for (Made& file : files) {
        if (file.record) {
            if (!a.report.quiet) log("{} is there already", file.path);
            continue;
        }
        const Fitted fitted = fit.fit({.file_bytes = file.size.bytes});
        Recipe recipe = fit.recipe(fitted.plan);
        recipe.model = a.model;
        file.record = {fitted.plan, fit.factors(), fitted.divergence, to_yaml(recipe)};
        write_made(file.path, file.inputs, *file.record, fitted.compression.model);
        if (!a.report.quiet) log("wrote {}", file.path);
    }
}

FrontierFile described(const std::string& name, const std::string& path, FitMeasures& measures) {
    const Model model = load_model(path);
    const Cost cost = account(model).model;
    FrontierFile out;
    out.name = name;
    out.path = path;
    out.file_bytes = fs::file_size(path);
    out.bits_per_weight = 8 * static_cast<double>(cost.bytes) / static_cast<double>(cost.parameters);
    out.types = type_map(model);
    out.figures = measures.measure(path);
    return out;
}

std::string command_line(const FitArguments& a) {
    std::string out = fmt::format("refold fit {} --frontier {}", a.model, a.frontier);
    if (a.target != "refold") out += " --for " + a.target;
    if (!a.kv_per_token.empty()) out += " --kv-per-token " + a.kv_per_token;
    if (!a.moves.empty()) out += " --moves " + join(a.moves, ",");
    for (const std::string& text : a.calibration) out += " --calib " + text;
    out += fmt::format(" --calib-tokens {} --probe-tokens {} --text {}", a.text.tokens, a.probe_tokens,
                       a.perplexity.text);
    if (a.text.length != CalibrationOptions{}.length)
        out += fmt::format(" --sequence-length {}", a.text.length);
    if (a.perplexity.options.max_windows > 0)
        out += fmt::format(" --max-windows {}", a.perplexity.options.max_windows);
    for (const std::string& other : a.compare) out += " --compare " + other;
    return out + " -o " + a.output.path;
}

Frontier measured(const FitArguments& a, const FitInput& input, const std::vector<Made>& files,
                  const std::vector<std::string>& others, FitMeasures& measures) {
    Frontier out;
    out.model = a.model == input.path ? fs::path(a.model).filename().string() : a.model;
    out.version = REFOLD_VERSION;
    out.date = utc_now(kDateFormat);
    out.file_bytes = input.file_bytes;
    out.text = measures.text();
    out.commands = {command_line(a)};
    for (const Made& file : files) {
        FrontierFile& added = out.files.emplace_back(described(file.size.name, file.path, measures));
        added.predicted_divergence = file.record->plan.divergence();
        added.calibration_divergence = file.record->divergence;
        added.recipe = file.record->recipe;
    }
    for (const std::string& other : others) {
        FrontierFile& added =
            out.files.emplace_back(described(fs::path(other).stem().string(), other, measures));
        added.made = false;
        const Model model = load_model(other);
        if (const auto warning = calibration_warning(model, measures.data()))
            out.notes.push_back(fmt::format("{}: {}", added.name, *warning));
    }
    out.perplexity = measures.original_perplexity();
    out.standard_error = measures.original_standard_error();
    return out;
}

void show(const FitArguments& a, const Places& places, const Frontier& frontier) {
    if (a.report.json) {
        Json out = frontier_json(frontier);
        out["page"] = places.page;
        add_calibration_device(out);
        return print_json(out);
    }
    TextTable table({"", "size", "KL divergence", "perplexity"});
    table.add(
        {frontier.model, format_bytes(frontier.file_bytes), "0", fmt::format("{:.3f}", frontier.perplexity)});
    for (const FrontierFile& file : frontier.files)
        table.add({file.name, format_bytes(file.file_bytes),
                   fmt::format("{:.4g}", file.figures.kl_divergence),
                   fmt::format("{:.3f}", file.figures.perplexity)});
    print(fmt::format("{}\n{}{}", frontier.text, table.str(), calibration_device_line()));
    if (!a.report.quiet) log("wrote {}", places.page);
}

void show_plans(const FitArguments& a, const FitInput& input, const Calibration& calibration, Work& work,
                const std::vector<NamedSize>& sizes) {
    const Fit fit(input.model, calibration, work, input.options);
    Json plans = Json::array();
    for (const NamedSize& size : sizes) {
        const FitPlan plan = fit.plan({.file_bytes = size.bytes});
        if (!a.report.json) print(plan_line(plan));
        plans.push_back(plan_json(plan));
        plans.back()["name"] = size.name;
    }
    if (a.report.json) print_json({{"dry_run", true}, {"plans", plans}});
}

// Text that chose the types says little about them.
void check_held_out(const Calibration& calibration, const DataFile& data) {
    for (const Calibration::Text& text : calibration.texts) {
        if (text.hash == data.sha256)
            fail(ErrorCode::usage, "fit", "--text {} is a calibration text, too - give a text that is none",
                 data.path);
    }
}

}  // namespace

void check_frontier_options(const FitArguments& a) {
    if (a.frontier.empty()) {
        if (!a.perplexity.text.empty() || !a.compare.empty())
            fail(ErrorCode::usage, "fit",
                 "--text and --compare are for --frontier, which measures its files");
        return;
    }
    if (!a.dry_run && a.perplexity.text.empty())
        fail(ErrorCode::usage, "fit",
             "give --text, a text that is no calibration text: --frontier measures its files on it");
    if (fs::path(a.output.path).extension() == ".gguf")
        fail(ErrorCode::usage, "fit",
             "--output {}: with --frontier it is a folder for several files, and the name of a page",
             a.output.path);
}

void fit_frontier(const FitArguments& a) {
    const std::vector<NamedSize> sizes = parse_sizes(a.frontier, "--frontier");
    FitInput input = load_fit_input(a);
    std::vector<uint64_t> bytes;
    for (const NamedSize& size : sizes) bytes.push_back(size.bytes);
    check_budgets(a, input, bytes);
    const Calibration calibration = load_calibration(a.calibration, input.path, a.text);
    Work work(a.work_folder());
    // One structure for all sizes: the best one for the smallest.
    if (!moves_of(a).methods.empty()) {
        Search search(input.model, calibration, work, input.options, moves_of(a),
                      budget_of(a, input, bytes.front()));
        input.options.structure = best_structure(a, search);
    }
    if (a.dry_run) return show_plans(a, input, calibration, work, sizes);

    const Places places(a.output.path);
    check_output({places.page, a.output.overwrite}, input.path);
    FitMeasures measures(a.perplexity, a.threads, input.path, places.measures());
    check_held_out(calibration, measures.data());
    std::vector<std::string> others;
    for (const std::string& other : a.compare) measures.check(others.emplace_back(resolve_model(other)));
    std::vector<Made> files;
    for (const NamedSize& size : sizes) {
        Made& file = files.emplace_back(size, places.file(size), "", std::nullopt);
        file.inputs = fit_inputs(input.model, calibration, input.options, size.bytes);
        file.record = made_before(file.path, file.inputs, a.output.overwrite);
    }
    std::error_code error;
    fs::create_directories(places.folder, error);
    if (error)
        fail(ErrorCode::io, "fit", "cannot make the folder '{}': {}", places.folder.string(),
             error.message());

    make_files(a, input, calibration, work, files);
    const Frontier frontier = measured(a, input, files, others, measures);
    AtomicFile page(places.page, a.output.overwrite);
    page.write(frontier_html(frontier));
    page.commit();
    show(a, places, frontier);
}

}  // namespace refold::cli
