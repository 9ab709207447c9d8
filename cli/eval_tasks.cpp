#include "cli/eval_tasks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>

#include "cli/exits.h"
#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/report_file.h"
#include "core/error.h"
#include "core/files.h"
#include "core/group.h"
#include "core/parallel.h"
#include "core/text.h"
#include "eval/provenance.h"
#include "hub/resolve.h"
#include "model/finite.h"
#include "model/load.h"
#include "tasks/load_task.h"
#include "tasks/results.h"
#include "tasks/run_tasks.h"
#include "tasks/samples.h"
#include "tasks/table.h"
#include "train/launch.h"

namespace refold::cli {
namespace {

struct TaskArguments {
    std::string model, data, samples;
    std::vector<std::string> tasks;
    OutputOptions output;
    double limit = 0;  // number of items; below 1: part of the items; 0: all
    int64_t shots = -1;
    int64_t length = 4096;
    uint64_t seed = 1234;
    PromptOptions prompts;
    EngineOptions engine;
    ExitArguments exits;
    ReportOptions report;
    ReportFile report_file;
};

std::vector<std::string> names_of(const TaskArguments& a) {
    std::vector<std::string> names;
    for (const std::string& given : a.tasks)
        for (const std::string& name : expand_tasks(given))
            if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    return names;
}

// A limit below 1 is a part of the items, rounded up as in lm-eval.
void keep_part(Task& task, double limit) {
    if (limit <= 0 || limit >= 1) return;
    task.items.resize(static_cast<size_t>(std::ceil(limit * static_cast<double>(task.items.size()))));
}

// Longest sequence that the model supports, in tokens.
int64_t longest_sequence(const ModelConfig& config) {
    if (config.n_learned_positions == 0) return config.context_length;
    return std::min(config.context_length,
                    config.n_learned_positions - (config.padding_token ? *config.padding_token + 1 : 0));
}

std::vector<TaskRun> prepare(const TaskArguments& a, const Tokenizer& tokenizer,
                             const PromptOptions& prompts) {
    TaskOptions options;
    options.data = a.data;
    options.limit = static_cast<int64_t>(a.limit);  // 0 below 1
    if (a.shots >= 0) options.shots = a.shots;
    options.seed = a.seed;
    options.length = std::min(a.length, prompts.max_length);
    options.count_tokens = [&](const std::string& text) {
        return static_cast<int64_t>(tokenizer.encode(text, false, true).size());
    };
    DataHashes hashes;
    options.hashes = &hashes;
    std::vector<TaskRun> runs;
    for (const std::string& name : names_of(a)) {
        Task task = load_task(name, options);
        keep_part(task, a.limit);
        runs.push_back(prepare_task(std::move(task), tokenizer, prompts));
        if (const int64_t cut = runs.back().cut_requests(); cut > 0) {
            log("note: {}: {} of {} prompts are longer than {} tokens and lose their beginning", name, cut,
                runs.back().requests.size(), prompts.max_length);
        }
    }
    return runs;
}

nlohmann::ordered_json settings_of(const TaskArguments& a, int64_t max_length) {
    const bool torch = a.engine.kind == EngineKind::torch;
    nlohmann::ordered_json out = {{"engine", torch ? "torch" : "ggml"},
                                  {"f32", a.engine.f32 || torch},
                                  {"kv", kv_type_name(a.engine.kv)},
                                  {"max_length", max_length},
                                  {"apply_chat_template", a.prompts.chat_template},
                                  {"fewshot_as_multiturn", a.prompts.multiturn}};
    if (a.engine.rope.active()) out["rope"] = to_text(a.engine.rope);
    return out;
}

// Every process keeps its own answers.
std::string work_path(const TaskArguments& a, const std::string& key) {
    const std::string process = group().first() ? "" : fmt::format(".{}", group().rank());
    if (!a.output.path.empty()) return a.output.path + ".work" + process;
    return (cache_directory() / "tasks" / (key + ".jsonl" + process)).string();
}

// Calls run(i) for every task; when it is interrupted, says where the answers are kept.
void answer(size_t tasks, WorkFile& work, const std::function<void(size_t)>& run) {
    if (work.found() > 0) log("{} answers of an interrupted run are in '{}'", work.found(), work.path());
    try {
        for (size_t i = 0; i < tasks; ++i) run(i);
    } catch (const Error& error) {
        if (const size_t kept = work.found() + work.added();
            error.code() == ErrorCode::interrupted && kept > 0)
            log("{} answers are kept in '{}': the same command resumes from there", kept, work.path());
        throw;
    }
}

nlohmann::ordered_json exit_results(const std::vector<TaskRun>& runs, const ExitArguments& exits,
                                    const nlohmann::ordered_json& calibration) {
    ExitCounts all(static_cast<int32_t>(runs.front().exits.at_loop.size()));
    nlohmann::ordered_json tasks;
    for (const TaskRun& run : runs) {
        all.add(run.exits);
        tasks[run.task.spec.name] = exit_counts_json(run.exits);
    }
    log("{}\n{}", exit_rule_text(exits), exit_counts_text(all));
    auto out = exits_json(exits, all);
    out["tasks"] = tasks;
    out["calibration"] = calibration;
    return out;
}

std::vector<DataFile> data_files(const std::vector<TaskRun>& runs) {
    std::vector<DataFile> files;
    const auto add = [&](const std::string& path, const std::string& hash) {
        const bool known =
            std::any_of(files.begin(), files.end(), [&](const DataFile& f) { return f.path == path; });
        if (!path.empty() && !known) files.push_back({path, hash, std::filesystem::file_size(path)});
    };
    for (const TaskRun& run : runs) {
        add(run.task.data_file, run.task.data_sha256);
        for (const auto& [path, hash] : run.task.more_files) add(path, hash);
    }
    return files;
}

void write_output(const OutputOptions& output, const std::string& path, const std::string& text) {
    AtomicFile file(path, output.overwrite);
    file.write(text);
    file.commit();
}

void write_samples(const TaskArguments& a, const std::string& lines) {
    const bool there = !a.output.overwrite && std::filesystem::is_regular_file(a.samples);
    if (!there || read_text_file(a.samples) != lines) write_output(a.output, a.samples, lines);
}

void measure_tasks(const TaskArguments& a) {
    join_group();
    const bool first = group().first();
    if (a.engine.eviction.active()) {
        fail(ErrorCode::usage, "tasks",
             "a KV cache that evicts rows cannot go back to the common beginning of prompts - leave out "
             "--kv-policy");
    }
    const std::string path = resolve_model(a.model);
    if (first && !a.output.path.empty()) check_output(a.output, path);
    // Samples may be those of a run that was killed before it wrote its results: write_samples() tells.
    const bool resumes = !a.output.path.empty() && std::filesystem::exists(a.output.path + ".work");
    if (first && !a.samples.empty() && !resumes) check_output({a.samples, a.output.overwrite}, path);
    if (first) a.report_file.check();
    const auto start = std::chrono::steady_clock::now();
    const Tokenizer tokenizer(path);
    std::optional<Model> model = load_model(path);
    check_finite(*model, a.engine.threads);
    check_exits(a.exits, *model, a.engine);
    PromptOptions prompts = a.prompts;
    prompts.encoder = !model->config.causal;
    prompts.max_length = a.engine.context > 0 ? a.engine.context : longest_sequence(model->config);
    std::vector<TaskRun> runs = prepare(a, tokenizer, prompts);

    EngineOptions options = a.engine;
    options.context = context_needed(runs);
    if (options.threads == 0) options.threads = default_threads();
    const auto data = data_files(runs);
    auto warnings = nlohmann::ordered_json::array();
    for (const DataFile& file : data) {
        if (const auto warning = calibration_warning(*model, file)) {
            log("refold: warning: {}", *warning);
            warnings.push_back(*warning);
        }
    }
    const auto provenance = to_json(Provenance{a.model, path, &*model, options, options.threads, data});
    auto settings = settings_of(a, prompts.max_length);
    const std::string hash = provenance["model"]["sha256"];
    std::string all_settings = settings.dump();
    ExitArguments exits = a.exits;
    std::unique_ptr<Engine> exiting;
    nlohmann::ordered_json calibration;
    if (exits.active()) {
        const int64_t sequences = ExitAnswers::sequences(exits.plan.policy);
        exiting = make_exit_engine(*model, exits, options, options.context, sequences);
        calibration = calibrate(exits, *exiting, path);
        all_settings += exit_rule_text(exits);
    }
    const std::string key = run_key(hash, all_settings, runs);
    WorkFile work(work_path(a, key), key);
    if (exiting) {
        model.reset();
        answer(runs.size(), work,
               [&](size_t i) { run_task(runs[i], *exiting, exits.plan.policy, tokenizer, &work, i); });
    } else {
        const auto engine = make_task_engine(*model, options);
        model.reset();
        answer(runs.size(), work, [&](size_t i) { run_task(runs[i], *engine, tokenizer, &work, i); });
    }
    if (!first) {
        work.finish();
        return;
    }

    auto results = results_json(runs);
    settings.update({{"model", a.model},
                     {"model_sha256", hash},
                     {"threads", options.threads},
                     {"fewshot_seed", a.seed},
                     {"limit", a.limit > 0 ? nlohmann::ordered_json(a.limit) : nlohmann::ordered_json()},
                     {"bootstrap_iters", 100000}});
    results["config"] = settings;
    if (exits.active()) results["exit"] = exit_results(runs, exits, calibration);
    results["warnings"] = warnings;
    results["provenance"] = provenance;
    results["date"] = static_cast<int64_t>(std::time(nullptr));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    results["total_evaluation_time_seconds"] = seconds;

    if (!a.samples.empty()) {
        const std::string lines = samples_jsonl(runs);
        write_samples(a, lines);
        results["samples"] = {{"file", a.samples}, {"sha256", data_file(a.samples, lines).sha256}};
    }
    if (!a.output.path.empty()) write_output(a.output, a.output.path, results.dump(2) + "\n");
    if (a.report.json) {
        print_json(results);
    } else {
        print(results_table(results));
    }
    a.report_file.write({named_model(a.model, path)}, results);
    work.finish();
    if (!a.report.quiet) log("{}", format_seconds(seconds));
}

}  // namespace

Action eval_tasks(CLI::App& eval) {
    auto a = std::make_shared<TaskArguments>();
    CLI::App* app =
        eval.add_subcommand("tasks", "Accuracies of tasks, by lm-evaluation-harness's definitions");
    add_model(*app, a->model)->required();
    app->add_option("--tasks", a->tasks, "Names of built-in tasks or groups (docs/tasks.md), or YAML files")
        ->type_name("NAME,...")
        ->delimiter(',')
        ->required();
    app->add_option("--data", a->data, "Folder with the tasks' data (default: from the hub)")
        ->type_name("DIR");
    app->add_option("--limit", a->limit, "Only the first N items of a task; below 1: this part of them")
        ->type_name("N")
        ->check(at_least(0))
        ->default_str("all");
    app->add_option("--shots", a->shots, "Examples before every item")
        ->type_name("N")
        ->check(at_least(0))
        ->default_str("the task's");
    app->add_option("--seed", a->seed, "Seed for drawing examples")->type_name("N")->capture_default_str();
    app->add_option("--length", a->length, "Tokens of generated items (ruler)")
        ->type_name("TOKENS")
        ->check(at_least(1))
        ->capture_default_str();
    app->add_flag("--apply-chat-template", a->prompts.chat_template,
                  "Prompts are messages of a user in the model's chat template");
    a->prompts.multiturn = true;
    app->add_flag("!--fewshot-as-one-turn", a->prompts.multiturn,
                  "With a chat template: the examples are part of the user's message, no turns of their own");
    app->add_option("--samples", a->samples, "Write every item with its answers, as JSON lines")
        ->type_name("FILE");
    add_eval_exit_options(*app, a->exits, false);
    add_output(*app, a->output, "Write the results as JSON");
    add_engine_kind(*app, a->engine.kind);
    add_engine_options(*app, a->engine, "the model's; longer prompts lose their beginning");
    add_eviction_options(*app, a->engine.eviction);
    add_report_options(*app, a->report);
    a->report_file.declare(*app);
    add_examples(*app,
                 {"refold eval tasks smollm2-135m-instruct --tasks piqa,hellaswag --data DIR --limit 200",
                  "refold eval tasks small.gguf --tasks mmlu --shots 5 --samples mmlu.jsonl -o mmlu.json",
                  "refold eval tasks small.gguf --tasks my-task.yaml --json",
                  "refold eval tasks looped.gguf --tasks piqa --exit entropy --exit-threshold 1.5"});
    return [a] { measure_tasks(*a); };
}

}  // namespace refold::cli
