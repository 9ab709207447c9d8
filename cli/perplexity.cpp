#include "cli/perplexity.h"

#include "cli/options.h"
#include "cli/output.h"
#include "eval/protocols.h"
#include "hub/resolve.h"
#include "model/finite.h"
#include "model/load.h"

namespace refold::cli {

using Json = nlohmann::ordered_json;

CLI::Option* add_perplexity_options(CLI::App& app, PerplexityArguments& a) {
    CLI::Option* text =
        app.add_option("--text", a.text, "UTF-8 text; lm-eval also takes JSONL with \"text\" or \"page\"")
            ->type_name("FILE");
    app.add_option_function<std::string>(
           "--protocol", [&a](const std::string& name) { a.options.protocol = protocol_from_name(name); },
           "Perplexity protocol. windows: whole windows; gptq: WikiText's rows joined by blank lines, "
           "windows of 2048; llama.cpp: as llama-perplexity; lm-eval: document by document, per word and "
           "byte")
        ->type_name("NAME")
        ->default_str("windows");
    app.add_option("--stride", a.options.stride,
                   "windows: tokens from one window to the next; a token is scored once")
        ->type_name("TOKENS")
        ->check(at_least(1))
        ->default_str("context");
    app.add_option("--max-windows", a.options.max_windows,
                   "Stop after this many windows (lm-eval: documents); 0: all")
        ->type_name("N")
        ->check(at_least(0))
        ->capture_default_str();
    return text;
}

PerplexityInput perplexity_input(const PerplexityArguments& a, const EngineOptions& engine,
                                 const std::string& path, const std::string& text, int64_t context) {
    PerplexityInput in{path, load_model(path), {}, engine};
    check_finite(in.model, engine.threads);
    PerplexityOptions options = a.options;
    options.context =
        context > 0 ? context : default_context(options.protocol, in.model.config.context_length);
    in.plan = plan_perplexity(options, Tokenizer(path), text, a.text);
    // Documents may be far shorter than the model's context.
    const bool short_cache = options.protocol == PerplexityProtocol::lm_eval && !engine.eviction.active();
    in.engine.context = short_cache ? in.plan.context_needed() : options.context;
    return in;
}

Json protocol_json(const PerplexityPlan& plan) {
    Json out = {{"protocol", protocol_name(plan.options.protocol)},
                {"context", plan.options.context},
                {"stride", plan.options.stride},
                {"max_windows", plan.options.max_windows},
                {"bos", plan.bos}};
    if (plan.options.protocol == PerplexityProtocol::lm_eval) {
        out["documents"] = plan.items.size();
        out["document_form"] = plan.form;
    }
    return out;
}

Json perplexity_json(const PerplexityResult& r) {
    Json out = {{"perplexity", r.perplexity},
                {"standard_error", r.standard_error},
                {"mean_nll", r.mean_nll},
                {"tokens_scored", r.tokens_scored},
                {"windows", r.windows}};
    const auto add = [&](const std::string& name, const std::optional<PerplexityMeasure>& measure) {
        if (!measure) return;
        out[name] = measure->value;
        out[name + "_standard_error"] = measure->standard_error ? Json(*measure->standard_error) : Json();
    };
    add("word_perplexity", r.word_perplexity);
    add("byte_perplexity", r.byte_perplexity);
    add("bits_per_byte", r.bits_per_byte);
    return out;
}

std::string perplexity_line(const PerplexityResult& r) {
    const auto shown = [](const char* label, const PerplexityMeasure& m) {
        return m.standard_error ? fmt::format("{} {:.4f} +- {:.4f}", label, m.value, *m.standard_error)
                                : fmt::format("{} {:.4f}", label, m.value);
    };
    const PerplexityMeasure tokens{r.perplexity, r.standard_error};
    if (!r.word_perplexity) return shown("perplexity", tokens);
    return fmt::format("{}\n{}\n{}\n{}", shown("word perplexity", *r.word_perplexity),
                       shown("byte perplexity", *r.byte_perplexity), shown("bits per byte", *r.bits_per_byte),
                       shown("token perplexity", tokens));
}

}  // namespace refold::cli
