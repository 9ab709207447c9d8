#include "eval/compare.h"

#include <filesystem>

#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/perplexity.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/group.h"
#include "core/text.h"
#include "eval/protocols.h"
#include "hub/resolve.h"
#include "model/load.h"
#include "train/launch.h"

namespace refold::cli::compare_verb {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
    std::string a, b;
    PerplexityArguments perplexity;
    EngineOptions engine;
    BootstrapOptions bootstrap;
    ReportOptions report;
};

template <typename T>
Json json_of(const std::optional<T>& value) {
    return value ? Json(*value) : Json();
}

Json to_json(const Difference& d) {
    return {{"task", d.task},
            {"filter", d.filter},
            {"metric", d.metric},
            {"items", d.items},
            {"a", d.a},
            {"b", d.b},
            {"difference", d.difference()},
            {"low", json_of(d.low)},
            {"high", json_of(d.high)},
            {"p", json_of(d.p)},
            {"test", d.test},
            {"only_a", json_of(d.only_a)},
            {"only_b", json_of(d.only_b)}};
}

Json to_json(const LogitAgreement& logits) {
    const auto bounds = [](const std::optional<BootstrapInterval>& interval) {
        return interval ? Json{interval->low, interval->high} : Json();
    };
    return {{"kl_divergence", logits.kl_divergence},
            {"kl_divergence_interval", bounds(logits.kl_interval)},
            {"top1_agreement", logits.top1_agreement},
            {"top1_agreement_interval", bounds(logits.top1_interval)}};
}

Json to_json(const Differences& differences, const BootstrapOptions& options) {
    Json rows = Json::array();
    for (const Difference& d : differences.rows) rows.push_back(to_json(d));
    return {{"differences", rows},
            {"notes", differences.notes},
            {"resamples", options.resamples},
            {"seed", options.seed}};
}

std::string p_text(const std::optional<double>& p) {
    if (!p) return "";
    return *p < 0.0001 ? "< 0.0001" : fmt::format("{:.4f}", *p);
}

std::string to_text(const Differences& differences) {
    TextTable table({"", "items", "A", "B", "B - A", "95 % interval", "p", "test"});
    for (const Difference& d : differences.rows) {
        const std::string only = d.only_a ? fmt::format(" ({} only A, {} only B)", *d.only_a, *d.only_b) : "";
        table.add(
            {fmt::format("{}{}{}", d.task, d.task.empty() ? "" : " ", d.metric),
             d.items > 0 ? format_count(static_cast<uint64_t>(d.items)) : "", fmt::format("{:.4f}", d.a),
             fmt::format("{:.4f}", d.b), fmt::format("{:+.4f}", d.difference()),
             d.low ? fmt::format("{:+.4f} to {:+.4f}", *d.low, *d.high) : "", p_text(d.p), d.test + only});
    }
    std::string out = table.str();
    for (const std::string& line : differences.notes) out += "note: " + line + "\n";
    return out;
}

std::string to_text(const LogitAgreement& logits) {
    const auto& kl = logits.kl_interval;
    const auto& top1 = logits.top1_interval;
    return fmt::format(
        "KL divergence of B from A {:.6f} nats per token{}\nthe same likeliest token in {:.2f} %{}\n",
        logits.kl_divergence, kl ? fmt::format(" ({:.6f} to {:.6f})", kl->low, kl->high) : "",
        100 * logits.top1_agreement,
        top1 ? fmt::format(" ({:.2f} to {:.2f})", 100 * top1->low, 100 * top1->high) : "");
}

void compare_models(const Arguments& a) {
    join_group();
    const bool first = group().first();
    const std::string text = read_text_file(a.perplexity.text);
    const std::string paths[2] = {resolve_model(a.a), resolve_model(a.b)};
    int64_t context = a.engine.context;
    if (context == 0)  // the same for both models
        context = default_context(
            a.perplexity.options.protocol,
            std::min(load_model(paths[0]).config.context_length, load_model(paths[1]).config.context_length));
    const DataFile data = data_file(a.perplexity.text, text);
    std::vector<PerplexityInput> in;
    std::vector<std::unique_ptr<SingleSequence>> sequences;
    Json warnings = Json::array();
    for (const std::string& path : paths) {
        in.push_back(perplexity_input(a.perplexity, a.engine, path, text, context));
        const auto warning = calibration_warning(in.back().model, data);
        if (!warning) continue;
        warnings.push_back(fmt::format("{}: {}", path, *warning));
        if (first) log("refold: warning: {}", warnings.back().get<std::string>());
    }
    for (const PerplexityInput& input : in)
        sequences.push_back(make_single_sequence(input.model, input.engine));
    const ModelComparison result =
        refold::compare_models(*sequences[0], in[0].plan, *sequences[1], in[1].plan, a.bootstrap);
    if (!first) return;
    if (a.report.json) {
        Json out;
        const auto side = [&](const char* key, const PerplexityResult& r, const std::string& name, size_t i) {
            out[key] = perplexity_json(r);
            out[key]["provenance"] =
                to_json(in[i].provenance(name, sequences[i]->capabilities().threads, data));
        };
        side("a", result.a, a.a, 0);
        side("b", result.b, a.b, 1);
        out.update(protocol_json(in[0].plan));
        out.update(to_json(result.differences, a.bootstrap));
        out["logits"] = result.logits ? to_json(*result.logits) : Json();
        out["warnings"] = warnings;
        print_json(out);
        return;
    }
    print(fmt::format("A {}\nB {}\nprotocol {}: {}\n\n{}{}", a.a, a.b,
                      protocol_name(in[0].plan.options.protocol), protocol_text(in[0].plan.options),
                      to_text(result.differences), result.logits ? "\n" + to_text(*result.logits) : ""));
}

void compare_files(const Arguments& a) {
    const ResultFile first = read_result(a.a), second = read_result(a.b);
    const Differences differences = compare_results(first, second, a.bootstrap);
    if (a.report.json) {
        const auto side = [](const ResultFile& file) {
            const bool known = file.summary.is_object() && file.summary.contains("provenance");
            return Json{{"file", file.path}, {"provenance", known ? file.summary["provenance"] : Json()}};
        };
        Json out = {{"a", side(first)}, {"b", side(second)}};
        out.update(to_json(differences, a.bootstrap));
        print_json(out);
        return;
    }
    print(fmt::format("A {}\nB {}\n\n{}", a.a, a.b, to_text(differences)));
}

bool is_result(const std::string& argument) {
    const auto extension = std::filesystem::path(argument).extension();
    return extension == ".json" || extension == ".jsonl";
}

void compare(const Arguments& a) {
    const bool results = is_result(a.a);
    if (results != is_result(a.b))
        fail(ErrorCode::usage, "compare", "'{}' and '{}': expected two models or two results (.json, .jsonl)",
             a.a, a.b);
    if (results && !a.perplexity.text.empty())
        fail(ErrorCode::usage, "compare",
             "--text is for two models; results are of the text they were made on");
    if (!results && a.perplexity.text.empty())
        fail(ErrorCode::usage, "compare", "give the text on which the models are compared with --text");
    results ? compare_files(a) : compare_models(a);
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    app.add_option(
           "A", a->a,
           "A model (as for other verbs), or a result: of `refold eval ... --json`, of lm-eval, or samples "
           "(.json, .jsonl)")
        ->required();
    app.add_option("B", a->b, "What is compared with it, of the same kind")->required();
    add_perplexity_options(app, a->perplexity);
    app.add_option("--resamples", a->bootstrap.resamples, "Resamples of the bootstrap")
        ->type_name("N")
        ->check(CLI::Range(100, 10000000))
        ->capture_default_str();
    app.add_option("--seed", a->bootstrap.seed, "Seed of the bootstrap")
        ->type_name("N")
        ->capture_default_str();
    add_engine_kind(app, a->engine.kind);
    add_engine_options(app, a->engine, kContextDefault);
    add_eviction_options(app, a->engine.eviction);
    add_report_options(app, a->report);
    add_examples(app, {"refold compare smollm2-135m-instruct small.gguf --text wikitext.txt --max-windows 40",
                       "refold compare dense.json small.json",
                       "refold compare dense.jsonl small.jsonl --resamples 100000 --json",
                       "torchrun --nproc-per-node 2 --no-python refold compare A B --text wikitext.txt"});
    return [a] { compare(*a); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"compare", VerbGroup::measurement,
                   "Show whether two models, or two results, differ by more than chance", declare};

}  // namespace refold::cli::compare_verb
