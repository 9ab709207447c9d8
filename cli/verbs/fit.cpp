#include "fit/fit.h"

#include <filesystem>

#include "cli/calibration.h"
#include "cli/fit_frontier.h"
#include "cli/fit_input.h"
#include "cli/fit_speed.h"
#include "cli/help.h"
#include "cli/output.h"
#include "cli/recipe_file.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/process_variables.h"
#include "core/text.h"
#include "fit/made_file.h"
#include "hub/resolve.h"
#include "model/accounting.h"
#include "train/launch.h"

namespace refold::cli::fit_verb {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

uint64_t wanted_bytes(const FitArguments& a, const FitInput& input) {
    if (!a.size.empty()) return parse_size(a.size, "--size").bytes;
    if (a.ratio > 0) return static_cast<uint64_t>(a.ratio * static_cast<double>(input.file_bytes));
    const Cost cost = account(input.model).model;
    return static_cast<uint64_t>(a.bits / 8 * static_cast<double>(cost.parameters)) +
           (input.file_bytes > cost.bytes ? input.file_bytes - cost.bytes : 0);
}

// What was measured to choose among --moves.
Json ways_json(const std::vector<Way>& ways) {
    Json out = Json::array();
    for (const Way& way : ways) {
        out.push_back({{"way", way.text()},
                       {"divergence", way.divergence()},
                       {"of_structure", way.of_structure},
                       {"predicted_of_types", way.of_types ? Json(*way.of_types) : Json()}});
    }
    return out;
}

void show_plan(const FitArguments& a, const FitInput& input, Search& search) {
    const FitPlan plan = search.plan();
    if (!first_process()) return;
    const Json speed = predicted_speed(a, input, plan);
    if (!a.report.json) return print(plan_line(plan) + speed_line(speed) + calibration_device_line());
    Json out = plan_json(plan);
    out["dry_run"] = true;
    out["ways"] = ways_json(search.ways());
    out["decode"] = speed;
    add_calibration_device(out);
    print_json(out);
}

// Refuses early what RecipeFile will refuse, unless the recipe may be that of an interrupted run.
void check_recipe(const FitArguments& a) {
    const std::string path = recipe_path(a.output.path);
    if (!a.output.overwrite && fs::exists(path) && !fs::exists(a.work_folder()))
        fail(ErrorCode::usage, "output", "'{}' exists - choose another output, or pass --overwrite", path);
}

void fit_model(const FitArguments& a) {
    if (!a.dry_run) check_output(a.output, resolve_model(a.model));
    if (!a.dry_run) check_recipe(a);
    if (!a.size.empty()) parse_size(a.size, "--size");
    FitInput input = load_fit_input(a);
    const uint64_t bytes = wanted_bytes(a, input);
    check_budgets(a, input, {bytes});
    const Calibration calibration = load_calibration(a.calibration, input.path, a.text);
    // The other processes help to measure, and write nothing.
    Work work(first_process() ? a.work_folder() : "");
    measure_speeds(a, input, calibration, work);
    Search search(input.model, calibration, work, input.options, moves_of(a), budget_of(a, input, bytes));
    best_structure(a, search);
    if (a.dry_run) return show_plan(a, input, search);
    const Fitted fitted = search.carry_out();
    if (!first_process()) return;
    Recipe recipe = search.recipe(fitted.plan);
    recipe.model = a.model;
    RecipeFile(recipe_path(a.output.path), recipe, a.output.overwrite)
        .save_with(fitted.compression.model, a.output.path, a.output.overwrite);
    const uint64_t written = fs::file_size(a.output.path);
    const Json speed = measured_speed(a, input, fitted.plan, a.output.path);
    if (a.report.json) {
        Json out = plan_json(fitted.plan);
        out["output"] = a.output.path;
        out["recipe_file"] = recipe_path(a.output.path);
        out["file_bytes"] = written;
        out["kv_bytes_per_token"] = fitted.compression.after().kv_bytes_per_token;
        out["divergence"] = fitted.divergence;
        out["way"] = search.ways().front().text();
        out["ways"] = ways_json(search.ways());
        out["decode"] = speed;
        add_calibration_device(out);
        print_json(out);
        return;
    }
    print(fmt::format(
        "{}: {} of {}; divergence from {} on held-out text {:.3g} nats per token (predicted {:.3g})\n{}{}",
        a.output.path, format_bytes(written), format_bytes(input.file_bytes), a.model, fitted.divergence,
        fitted.plan.divergence(), speed_line(speed), calibration_device_line()));
    if (!a.report.quiet)
        log("wrote {} and {}; measurements for other sizes are in {}", a.output.path,
            recipe_path(a.output.path), a.work_folder());
}

// Times are one machine's, and the files of a frontier one process's.
void check_processes(const FitArguments& a) {
    if (world_size() == 1 || (a.frontier.empty() && a.decode_speed == 0)) return;
    fail(ErrorCode::usage, "fit",
         "{} is for one process, and WORLD_SIZE says that there are several - start one, or give one size",
         a.frontier.empty() ? "--decode-speed" : "--frontier");
}

void run(FitArguments a) {
    if (a.output.path.empty() && !a.dry_run) fail(ErrorCode::usage, "fit", "give --output, or --dry-run");
    if (a.output.path.empty() && a.work.empty())
        fail(ErrorCode::usage, "fit", "give --work, a folder for the measurements");
    check_frontier_options(a);
    check_processes(a);
    join_group();
    a.where.local_rank = local_rank();
    const OnDevice on(a.where);
    a.frontier.empty() ? fit_model(a) : fit_frontier(a);
}

void add_budget(CLI::App& app, FitArguments& a) {
    auto* budget = app.add_option_group("Budget", "One of");
    budget->add_option("--size", a.size, "Size of the file: 70MiB, 1.5GB")->type_name("SIZE");
    budget->add_option("--ratio", a.ratio, "Part of MODEL's size")
        ->type_name("PART")
        ->check(CLI::Range(1e-6, 1.0));
    budget->add_option("--bpw", a.bits, "Bits per weight")->type_name("BITS")->check(CLI::Range(0.1, 32.0));
    budget
        ->add_option(
            "--frontier", a.frontier,
            "Several sizes, 60,70,80MiB: a file of each in the folder OUTPUT, and a page OUTPUT.html "
            "with what each size loses on --text. A run that was interrupted goes on where it was")
        ->type_name("SIZES");
    budget->require_option(1);
    app.add_option("--kv-per-token", a.kv_per_token,
                   "Also: at most so many bytes of KV cache per token (F16, all layers), such as 16KiB")
        ->type_name("SIZE");
    app.add_option(
           "--decode-speed", a.decode_speed,
           "Also: decode at least so many times as fast as MODEL, as predicted from the speeds of types on "
           "this machine, at a context of 512 tokens")
        ->type_name("TIMES")
        ->check(CLI::Range(1e-6, 1e6));
    std::vector<std::string> moves = {"types"};
    moves.insert(moves.end(), kStructureMethods.begin(), kStructureMethods.end());
    app.add_option(
           "--moves", a.moves,
           "What may change: types of matrices, and methods that change the structure, with repair. "
           "Without types, a method's best settings at the size; with both, the best mixture [types; with "
           "--kv-per-token also narrow,llmdrop,cla,uniattn]")
        ->delimiter(',')
        ->type_name("types|METHOD,...")
        ->check(CLI::IsMember(moves));
}

void add_calibration(CLI::App& app, FitArguments& a) {
    app.add_option("--calib", a.calibration,
                   "Calibration text (UTF-8); do not evaluate on it. May be repeated: sequences are taken "
                   "from the texts in turn, and "
                   "more kinds of text give a better model")
        ->type_name("FILE")
        ->allow_extra_args(false)
        ->required();
    app.add_option("--calib-tokens", a.text.tokens,
                   "Calibration tokens, from the beginnings of all texts together")
        ->type_name("N")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option(
           "--sequence-length", a.text.length,
           "Tokens of a calibration sequence. Shorter ones have more beginnings, whose tokens some models "
           "treat in their own way")
        ->type_name("N")
        ->check(at_least(2))
        ->capture_default_str();
    app.add_option("--probe-tokens", a.probe_tokens,
                   "Calibration tokens that tell how much the predictions depend on each matrix")
        ->type_name("N")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<FitArguments>();
    add_model(app, a->model)->required();
    add_budget(app, *a);
    app.add_option("--for", a->target,
                   "What runs the file. llama.cpp: plain GGUF for stock llama.cpp, with types whose blocks "
                   "divide the rows of a matrix, and no biases that it would not read")
        ->type_name("NAME")
        ->check(CLI::IsMember({"refold", "llama.cpp"}))
        ->capture_default_str();
    add_calibration(app, *a);
    add_perplexity_options(app, a->perplexity)
        ->description("With --frontier: held-out text (UTF-8) for KL divergence and perplexity");
    app.add_option("--compare", a->compare,
                   "With --frontier: another file of the same model, such as llama.cpp's Q4_K_M, beside the "
                   "new ones. May be repeated")
        ->type_name("FILE")
        ->allow_extra_args(false);
    app.add_option("--work", a->work,
                   "Folder for measurements, which serve for other sizes as well [OUTPUT.fit]")
        ->type_name("FOLDER");
    add_threads(app, a->threads);
    add_calibration_device(app, a->where);
    app.add_flag("-n,--dry-run", a->dry_run, "Measure and show the choice; write no model");
    add_output(
        app, a->output,
        "GGUF file to write; the recipe that was found goes beside it. With --frontier: folder to write");
    add_report_options(app, a->report);
    add_examples(app,
                 {"refold fit smollm2-135m-instruct --size 70MiB --calib wiki.valid.txt --calib novel.txt -o "
                  "small.gguf",
                  "refold fit model.gguf --size 70MiB --for llama.cpp --calib text.txt -o small.gguf",
                  "refold fit model.gguf --ratio 0.3 --calib text.txt -o small.gguf --work model.fit --json",
                  "refold fit model.gguf --bpw 4.5 --calib text.txt --work model.fit --dry-run",
                  "refold fit model.gguf --size 80MiB --kv-per-token 16KiB --calib text.txt -o small.gguf",
                  "refold fit model.gguf --ratio 0.35 --decode-speed 2 --calib text.txt -o fast.gguf",
                  "refold fit model.gguf --ratio 0.9 --moves direct_share --calib text.txt -o shared.gguf",
                  "refold fit model.gguf --frontier 60,70,80MiB --calib text.txt --text other.txt --compare "
                  "q4_k_m.gguf -o sizes"});
    return [a] { run(*a); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"fit", VerbGroup::compression, "Find the best model of a size, and write it", declare};

}  // namespace refold::cli::fit_verb
