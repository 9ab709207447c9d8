#include "fit/fit.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "cli/calibration.h"
#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/files.h"
#include "core/text.h"
#include "hub/resolve.h"
#include "model/accounting.h"
#include "model/load.h"
#include "model/save.h"
#include "model/stock.h"

namespace refold::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Arguments {
    std::string model, size, work, target = "refold";
    double ratio = 0, bits = 0;
    std::vector<std::string> calibration;
    int64_t tokens = 16384, probe_tokens = FitOptions{}.probe_tokens;
    int threads = 0;
    bool dry_run = false;
    OutputOptions output;
    ReportOptions report;
};

// "70MiB", "1.5GB", "73400320".
uint64_t parse_size(const std::string& text) {
    static const std::map<std::string, double> units = {{"", 1},         {"B", 1},       {"KB", 1e3},
                                                        {"MB", 1e6},     {"GB", 1e9},    {"KiB", 0x1p10},
                                                        {"MiB", 0x1p20}, {"GiB", 0x1p30}};
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    const auto unit = units.find(end);
    if (end == text.c_str() || unit == units.end() || !std::isfinite(number) || number <= 0 ||
        number * unit->second > 0x1p60)
        fail(ErrorCode::usage, "fit", "--size {}: expected a size such as 70MiB or 1.5GB", text);
    return static_cast<uint64_t>(number * unit->second);
}

uint64_t wanted_bytes(const Arguments& a, const Model& model, uint64_t file_bytes) {
    if (!a.size.empty()) return parse_size(a.size);
    if (a.ratio > 0) return static_cast<uint64_t>(a.ratio * static_cast<double>(file_bytes));
    const Cost cost = account(model).model;
    return static_cast<uint64_t>(a.bits / 8 * static_cast<double>(cost.parameters)) +
           (file_bytes > cost.bytes ? file_bytes - cost.bytes : 0);
}

// Whether stock llama.cpp loads the model's file as it is, but for its types.
void check_stock(const Model& model) {
    const Model stock = for_stock(model).model;
    if (!std::ranges::equal(stock.tensors, model.tensors,
                            [](const auto& a, const auto& b) { return a.first == b.first; }))
        fail(ErrorCode::unsupported, "fit",
             "{}: llama.cpp does not load its shared or factored weights; write a plain file first (refold "
             "export --to "
             "gguf), or leave out --for",
             model.label);
}

std::string recipe_path(const std::string& output) {
    fs::path path(output);
    if (path.extension() == ".gguf") path.replace_extension();
    return path.string() + ".recipe.yaml";
}

Json plan_json(const FitPlan& plan) {
    return {{"predicted_bytes", plan.bytes},
            {"predicted_divergence", plan.divergence()},
            {"predicted_divergence_of_matrices", plan.of_matrices},
            {"predicted_divergence_of_tables", plan.of_tables},
            {"types", plan.types}};
}

void show_plan(const Arguments& a, const FitPlan& plan) {
    Json out = plan_json(plan);
    out["dry_run"] = true;
    if (a.report.json) return print_json(out);
    print(fmt::format("{}: predicted divergence {:.3g} nats\ntypes: {}\n", format_bytes(plan.bytes),
                      plan.divergence(), plan.types));
}

void fit_model(const Arguments& a) {
    const std::string path = resolve_model(a.model);
    if (!a.dry_run) check_output(a.output, path);
    if (!a.size.empty()) parse_size(a.size);
    const Model model = load_model(path);
    const bool for_llama_cpp = a.target == "llama.cpp";
    if (for_llama_cpp) check_stock(model);
    uint64_t file_bytes = 0;
    if (model.source) {
        for (const auto& file : model.source->files()) file_bytes += file->bytes().size();
    }
    const Calibration calibration = load_calibration(a.calibration, path, {.tokens = a.tokens});
    Work work(a.work.empty() ? a.output.path + ".fit" : a.work);
    Fit fit(model, calibration, work,
            {a.probe_tokens, for_llama_cpp ? RowLayout::whole_blocks : RowLayout::or_folded, a.threads,
             a.calibration, REFOLD_VERSION});
    const uint64_t bytes = wanted_bytes(a, model, file_bytes);
    if (a.dry_run) return show_plan(a, fit.plan(bytes));
    const Fitted fitted = fit.fit(bytes);
    Recipe recipe = fit.recipe(fitted.plan);
    AtomicFile echo(recipe_path(a.output.path), a.output.overwrite);
    Recipe named = recipe;
    named.model = a.model;
    echo.write(to_yaml(named));
    save_model(fitted.compression.model, a.output.path, a.output.overwrite);
    echo.commit();
    const uint64_t written = fs::file_size(a.output.path);
    if (a.report.json) {
        Json out = plan_json(fitted.plan);
        out["output"] = a.output.path;
        out["recipe_file"] = recipe_path(a.output.path);
        out["file_bytes"] = written;
        out["divergence"] = fitted.divergence;
        print_json(out);
        return;
    }
    print(fmt::format(
        "{}: {} of {}; divergence from {} on held-out text {:.3g} nats per token (predicted {:.3g})\n",
        a.output.path, format_bytes(written), format_bytes(file_bytes), a.model, fitted.divergence,
        fitted.plan.divergence()));
    if (!a.report.quiet)
        log("wrote {} and {}; measurements for other sizes are in {}", a.output.path,
            recipe_path(a.output.path), a.work.empty() ? a.output.path + ".fit" : a.work);
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_model(app, a->model)->required();
    auto* budget = app.add_option_group("Budget", "One of");
    budget->add_option("--size", a->size, "Size of the file: 70MiB, 1.5GB")->type_name("SIZE");
    budget->add_option("--ratio", a->ratio, "Part of MODEL's size")
        ->type_name("PART")
        ->check(CLI::Range(1e-6, 1.0));
    budget->add_option("--bpw", a->bits, "Bits per weight")->type_name("BITS")->check(CLI::Range(0.1, 32.0));
    budget->require_option(1);
    app.add_option(
           "--for", a->target,
           "What runs the file. llama.cpp: only types whose blocks divide the rows of a matrix, as stock "
           "llama.cpp needs them")
        ->type_name("NAME")
        ->check(CLI::IsMember({"refold", "llama.cpp"}))
        ->capture_default_str();
    app.add_option("--calib", a->calibration,
                   "Calibration text (UTF-8); do not evaluate on it. May be repeated: sequences are taken "
                   "from the texts in turn, and "
                   "more kinds of text give a better model")
        ->type_name("FILE")
        ->allow_extra_args(false)
        ->required();
    app.add_option("--calib-tokens", a->tokens,
                   "Calibration tokens, from the beginnings of all texts together")
        ->type_name("N")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--probe-tokens", a->probe_tokens,
                   "Calibration tokens that tell how much the predictions depend on each matrix")
        ->type_name("N")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--work", a->work,
                   "Folder for measurements, which serve for other sizes as well [OUTPUT.fit]")
        ->type_name("FOLDER");
    add_threads(app, a->threads);
    app.add_flag("-n,--dry-run", a->dry_run, "Measure and show the choice; write no model");
    add_output(app, a->output, "GGUF file to write; the recipe that was found goes beside it");
    add_report_options(app, a->report);
    add_examples(app,
                 {"refold fit smollm2-135m-instruct --size 70MiB --calib wiki.valid.txt --calib novel.txt -o "
                  "small.gguf",
                  "refold fit model.gguf --ratio 0.3 --calib text.txt -o small.gguf --work model.fit --json",
                  "refold fit model.gguf --bpw 4.5 --calib text.txt --work model.fit --dry-run"});
    return [a] {
        if (a->output.path.empty() && !a->dry_run)
            fail(ErrorCode::usage, "fit", "give --output, or --dry-run");
        if (a->output.path.empty() && a->work.empty())
            fail(ErrorCode::usage, "fit", "give --work, a folder for the measurements");
        fit_model(*a);
    };
}

}  // namespace

extern const Verb fit_verb;
const Verb fit_verb = {"fit", VerbGroup::compression, "Find the best types for a size, and write that model",
                       declare};

}  // namespace refold::cli
