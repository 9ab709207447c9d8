#include "cli/eval_tasks.h"
#include "cli/exits.h"
#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/perplexity.h"
#include "cli/report_file.h"
#include "cli/verb.h"
#include "core/files.h"
#include "core/group.h"
#include "core/text.h"
#include "eval/protocols.h"
#include "eval/samples.h"
#include "exit/trajectory.h"
#include "hub/resolve.h"
#include "train/launch.h"

namespace refold::cli::eval_verb {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
    std::string model;
    PerplexityArguments perplexity;
    EngineOptions engine;
    ExitArguments exits;
    OutputOptions samples;
    ReportOptions report;
    ReportFile report_file;
};

std::string text_of(const PerplexityPlan& plan, const PerplexityResult& r) {
    const auto count = [](int64_t n) { return format_count(static_cast<uint64_t>(n)); };
    return fmt::format(
        "{}\nprotocol {}: {}; {} of {} tokens scored in {} windows{}, BOS: {}\n", perplexity_line(r),
        protocol_name(plan.options.protocol), protocol_text(plan.options), count(r.tokens_scored),
        count(plan.tokens_of_text()), count(r.windows),
        plan.form.empty() ? "" : fmt::format(" of {} documents ({})", plan.items.size(), plan.form),
        plan.bos);
}

// Results of one evaluation, with or without early exit.
struct Measured {
    PerplexityResult result;
    uint64_t kv_bytes = 0;
    int threads = 0;
    std::optional<ExitPerplexity> exits;
    ExitArguments exit_arguments;  // with calibrated thresholds
    Json calibration;
};

Measured measure(const Arguments& a, const PerplexityInput& in) {
    Measured m;
    m.exit_arguments = a.exits;
    if (!a.exits.active()) {
        const auto sequence = make_single_sequence(in.model, in.engine);
        m.result = measure_perplexity(*sequence, in.plan);
        m.kv_bytes = sequence->memory().kv_bytes;
        m.threads = sequence->capabilities().threads;
        return m;
    }
    const auto engine = make_exit_engine(in.model, a.exits, in.engine, in.engine.context, 1);
    m.calibration = calibrate(m.exit_arguments, *engine, in.path);
    m.exits = measure_exit_perplexity(*engine, in.plan, m.exit_arguments.plan);
    m.result = m.exits->exited;
    m.kv_bytes = engine->memory().kv_bytes;
    m.threads = engine->capabilities().threads;
    return m;
}

Json exit_result_json(const Measured& m) {
    Json out = exits_json(m.exit_arguments, m.exits->counts);
    for (size_t i = 0; i < m.exits->at_loop.size(); ++i) {
        Json loop{{"loop", i + 1}};
        loop.update(perplexity_json(m.exits->at_loop[i]));
        loop["agreement"] = m.exits->agreement_at_loop[i];
        out["at_loop"].push_back(loop);
    }
    out["calibration"] = m.calibration;
    return out;
}

std::string exit_result_text(const Measured& m) {
    if (!m.exits) return "";
    const ExitPerplexity& e = *m.exits;
    std::string out = fmt::format("{}\n{}\n", exit_rule_text(m.exit_arguments), exit_counts_text(e.counts));
    for (size_t i = 0; i < e.at_loop.size(); ++i)
        out += fmt::format("all tokens after loop {}: {}, agreement {:.2f} %\n", i + 1,
                           perplexity_line(e.at_loop[i]), 100 * e.agreement_at_loop[i]);
    return out;
}

void ppl(const Arguments& a) {
    join_group();
    const bool first = group().first();
    const std::string text = read_text_file(a.perplexity.text);
    const std::string path = resolve_model(a.model);
    if (first) a.report_file.check();
    std::optional<AtomicFile> samples, trajectory;
    if (first && !a.samples.path.empty()) samples.emplace(a.samples.path, a.samples.overwrite);
    if (first && !a.exits.trajectory.empty()) trajectory.emplace(a.exits.trajectory, a.samples.overwrite);
    const PerplexityInput in = perplexity_input(a.perplexity, a.engine, path, text, a.engine.context);
    check_exits(a.exits, in.model, a.engine);
    const DataFile data = data_file(a.perplexity.text, text);
    const auto warning = calibration_warning(in.model, data);
    if (warning) log("refold: warning: {}", *warning);
    const Measured m = measure(a, in);
    const PerplexityResult& r = m.result;
    if (!first) return;

    Json samples_json;
    if (samples) {
        const std::string lines = perplexity_samples(in.plan, r);
        samples->write(lines);
        samples->commit();
        samples_json = {{"file", a.samples.path}, {"sha256", data_file(a.samples.path, lines).sha256}};
    }
    Json out = perplexity_json(r);
    out["tokens"] = in.plan.tokens_of_text();
    if (in.plan.options.protocol == PerplexityProtocol::llama_cpp) out["running"] = r.running();
    out.update(protocol_json(in.plan));
    out.update(Json{{"seconds", r.seconds},
                    {"tokens_per_s", r.tokens_per_s},
                    {"engine", a.engine.kind == EngineKind::torch ? "torch" : "ggml"},
                    {"f32", a.engine.f32 || a.engine.kind == EngineKind::torch},
                    {"kv_policy", kv_policy_name(a.engine.eviction.policy)},
                    {"kv_budget", a.engine.eviction.budget},
                    {"kv_bytes", m.kv_bytes},
                    {"samples", samples_json},
                    {"warnings", warning ? Json::array({*warning}) : Json::array()},
                    {"provenance", to_json(in.provenance(a.model, m.threads, data))}});
    if (m.exits) out["exit"] = exit_result_json(m);
    if (trajectory) {
        Json about = exits_json(m.exit_arguments, m.exits->counts);
        for (const char* key : {"loops", "exits"}) about.erase(key);
        about.update(protocol_json(in.plan));
        for (const char* key : {"model", "data"}) about[key] = out["provenance"][key];
        trajectory->write(
            to_json_lines({static_cast<int32_t>(m.exits->at_loop.size()), about, m.exits->exits}));
        trajectory->commit();
    }
    a.report.json ? print_json(out) : print(text_of(in.plan, r) + exit_result_text(m));
    if (!a.report.json && !a.report.quiet)
        log("{:.1f} tokens/s, {}", r.tokens_per_s, format_seconds(r.seconds));
    a.report_file.write({named_model(a.model, path)}, out);
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    app.require_subcommand(1);
    CLI::App* sub = app.add_subcommand(
        "ppl", "Perplexity of a text: exp of the mean negative log likelihood of its tokens");
    add_model(*sub, a->model)->required();
    add_perplexity_options(*sub, a->perplexity)->required();
    sub->add_option("--samples", a->samples.path,
                    "JSONL to write, a line per window or document: for `refold compare`")
        ->type_name("FILE");
    add_eval_exit_options(*sub, a->exits, true);
    sub->add_flag("--overwrite", a->samples.overwrite, "Replace samples and trajectory if they exist");
    add_engine_kind(*sub, a->engine.kind);
    add_engine_options(*sub, a->engine, kContextDefault);
    add_eviction_options(*sub, a->engine.eviction);
    add_report_options(*sub, a->report);
    a->report_file.declare(*sub);
    add_examples(
        *sub,
        {"refold eval ppl smollm2-135m-instruct --text wikitext.txt --max-windows 40",
         "refold eval ppl small.gguf --text wiki.test.raw --protocol llama.cpp",
         "refold eval ppl small.gguf --text wiki.test.raw --protocol lm-eval --samples small.jsonl --json",
         "refold eval ppl small.gguf --text wikitext.txt --context 2048 --stride 512 --f32 --json",
         "refold eval ppl small.gguf --text wikitext.txt --kv-policy h2o --kv-budget 0.2",
         "refold eval ppl looped.gguf --text wikitext.txt --exit probability --exit-threshold 0.9",
         "refold eval ppl looped.gguf --text wikitext.txt --exit margin --exit-agreement 0.95 --calib "
         "valid.txt",
         "refold eval ppl looped.gguf --text wikitext.txt --exit oracle --exit-trajectory exits.jsonl"});
    const Action tasks = eval_tasks(app);
    add_examples(
        app, {"refold eval ppl smollm2-135m-instruct --text wikitext.txt",
              "refold eval tasks smollm2-135m-instruct --tasks piqa --data DIR", "refold eval ppl --help"});
    return [a, sub, tasks] { sub->parsed() ? ppl(*a) : tasks(); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"eval", VerbGroup::measurement, "Measure a model's quality", declare};

}  // namespace refold::cli::eval_verb
