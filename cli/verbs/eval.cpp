#include "cli/eval_tasks.h"
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
#include "hub/resolve.h"
#include "train/launch.h"

namespace refold::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
    std::string model;
    PerplexityArguments perplexity;
    EngineOptions engine;
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

void ppl(const Arguments& a) {
    join_group();
    const bool first = group().first();
    const std::string text = read_text_file(a.perplexity.text);
    const std::string path = resolve_model(a.model);
    if (first) a.report_file.check();
    std::optional<AtomicFile> samples;
    if (first && !a.samples.path.empty()) samples.emplace(a.samples.path, a.samples.overwrite);
    const PerplexityInput in = perplexity_input(a.perplexity, a.engine, path, text, a.engine.context);
    const DataFile data = data_file(a.perplexity.text, text);
    const auto warning = calibration_warning(in.model, data);
    if (warning) log("refold: warning: {}", *warning);
    const auto engine = make_engine(in.model, in.engine);
    const PerplexityResult r = measure_perplexity(*engine, in.plan);
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
                    {"kv_bytes", engine->memory().kv_bytes},
                    {"samples", samples_json},
                    {"warnings", warning ? Json::array({*warning}) : Json::array()},
                    {"provenance", to_json(in.provenance(a.model, *engine, data))}});
    a.report.json ? print_json(out) : print(text_of(in.plan, r));
    if (!a.report.json && !a.report.quiet)
        log("{:.1f} tokens/s, {}", r.tokens_per_s, format_seconds(r.seconds));
    a.report_file.write({named_model(a.model, path)}, out);
}

}  // namespace

Action eval_verb(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    app.require_subcommand(1);
    CLI::App* sub = app.add_subcommand(
        "ppl", "Perplexity of a text: exp of the mean negative log likelihood of its tokens");
    add_model(*sub, a->model)->required();
    add_perplexity_options(*sub, a->perplexity)->required();
    sub->add_option("--samples", a->samples.path,
                    "JSONL to write, a line per window or document: for `refold compare`")
        ->type_name("FILE");
    sub->add_flag("--overwrite", a->samples.overwrite, "Replace the samples if they exist");
    add_engine_kind(*sub, a->engine);
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
         "refold eval ppl small.gguf --text wikitext.txt --kv-policy h2o --kv-budget 0.2"});
    const Action tasks = eval_tasks(app);
    add_examples(
        app, {"refold eval ppl smollm2-135m-instruct --text wikitext.txt",
              "refold eval tasks smollm2-135m-instruct --tasks piqa --data DIR", "refold eval ppl --help"});
    return [a, sub, tasks] { sub->parsed() ? ppl(*a) : tasks(); };
}

}  // namespace refold::cli
