#include <functional>
#include <map>
#include <string>

#include "native/bindings.h"

namespace refold::python {
namespace {

using Setter = std::function<void(GenerationOptions&, const nb::handle&)>;

template <typename T>
Setter setter(T GenerationOptions::*field) {
    return [field](GenerationOptions& o, const nb::handle& value) { o.*field = nb::cast<T>(value); };
}

template <typename T>
Setter setter(T SamplingOptions::*field) {
    return [field](GenerationOptions& o, const nb::handle& value) { o.sampling.*field = nb::cast<T>(value); };
}

Setter format_setter(OutputFormat::Kind kind) {
    return [kind](GenerationOptions& o, const nb::handle& value) {
        if (o.format.kind != OutputFormat::Kind::any)
            throw nb::value_error("json_schema, grammar, regex and choices exclude each other");
        o.format.kind = kind;
        if (kind == OutputFormat::Kind::choice)
            o.format.choices = nb::cast<std::vector<std::string>>(value);
        else
            o.format.text = nb::cast<std::string>(value);
    };
}

const std::map<std::string, Setter>& setters() {
    static const std::map<std::string, Setter> out = {
        {"max_tokens", setter(&GenerationOptions::max_tokens)},
        {"stop", setter(&GenerationOptions::stop)},
        {"stop_tokens", setter(&GenerationOptions::stop_tokens)},
        {"ignore_eos", setter(&GenerationOptions::ignore_eos)},
        {"logprobs", setter(&GenerationOptions::logprobs)},
        {"temperature", setter(&SamplingOptions::temperature)},
        {"top_k", setter(&SamplingOptions::top_k)},
        {"top_p", setter(&SamplingOptions::top_p)},
        {"min_p", setter(&SamplingOptions::min_p)},
        {"typical_p", setter(&SamplingOptions::typical_p)},
        {"mirostat", setter(&SamplingOptions::mirostat)},
        {"mirostat_tau", setter(&SamplingOptions::mirostat_tau)},
        {"mirostat_eta", setter(&SamplingOptions::mirostat_eta)},
        {"penalty_last_n", setter(&SamplingOptions::penalty_last_n)},
        {"repetition_penalty", setter(&SamplingOptions::repetition_penalty)},
        {"presence_penalty", setter(&SamplingOptions::presence_penalty)},
        {"frequency_penalty", setter(&SamplingOptions::frequency_penalty)},
        {"logit_bias", setter(&SamplingOptions::logit_bias)},
        {"seed", setter(&SamplingOptions::seed)},
        {"json_schema", format_setter(OutputFormat::Kind::json_schema)},
        {"grammar", format_setter(OutputFormat::Kind::grammar)},
        {"regex", format_setter(OutputFormat::Kind::regex)},
        {"choices", format_setter(OutputFormat::Kind::choice)},
    };
    return out;
}

const char* name_of(FinishReason reason) {
    switch (reason) {
        case FinishReason::stop: return "stop";
        case FinishReason::length: return "length";
        case FinishReason::cancelled: return "cancelled";
        default: return "error";
    }
}

}  // namespace

GenerationOptions generation_options(const Facts& options) {
    GenerationOptions out;
    for (const auto& [key, value] : options) {
        const auto name = nb::cast<std::string>(key);
        const auto found = setters().find(name);
        if (found == setters().end()) throw nb::type_error(("unknown option '" + name + "'").c_str());
        try {
            found->second(out, value);
        } catch (const std::bad_cast&) {
            const auto text = nb::cast<std::string>(nb::repr(value));
            throw nb::type_error(("option '" + name + "' got " + text).c_str());
        }
    }
    return out;
}

void bind_generation(nb::module_& module) {
    nb::class_<TokenLogprob>(module, "TokenLogprob", "A token with its log probability (natural logarithm).")
        .def_ro("token", &TokenLogprob::token)
        .def_ro("logprob", &TokenLogprob::logprob)
        .def_ro("top", &TokenLogprob::top, "The likeliest tokens with their log probabilities, best first.")
        .def("__repr__", [](const TokenLogprob& t) {
            return nb::str(
                nb::str("TokenLogprob(token={}, logprob={:.4f})").attr("format")(t.token, t.logprob));
        });
    nb::class_<GenerationResult>(module, "Generation",
                                 "The continuation of a prompt; str() of it is its text.")
        .def_ro("text", &GenerationResult::text, "The generated text without the prompt.")
        .def_ro("tokens", &GenerationResult::tokens, "The generated token ids.")
        .def_ro("logprobs", &GenerationResult::logprobs, "Of all tokens, where `logprobs` asked for them.")
        .def_ro("exits", &GenerationResult::exits,
                "Of a looped model: the loop that each token was chosen after, from 1.")
        .def_prop_ro(
            "finished", [](const GenerationResult& g) { return name_of(g.finished); },
            "Why it ended: 'stop', 'length', 'cancelled' or 'error'.")
        .def_ro("stop_text", &GenerationResult::stop_text, "The stop text that ended it; else empty.")
        .def_ro("end_token", &GenerationResult::end_token,
                "The token that ended it, which `tokens` does not hold; else None.")
        .def_ro("context_full", &GenerationResult::context_full, "The context ended it, not `max_tokens`.")
        .def_ro("prompt_tokens", &GenerationResult::prompt_tokens, "The number of the prompt's tokens.")
        .def_ro("prefill_seconds", &GenerationResult::prefill_seconds)
        .def_ro("decode_seconds", &GenerationResult::decode_seconds)
        .def_prop_ro("prefill_tokens_per_s", &GenerationResult::prefill_tokens_per_s)
        .def_prop_ro("decode_tokens_per_s", &GenerationResult::decode_tokens_per_s)
        .def("__str__", [](const GenerationResult& g) { return g.text; })
        .def("__repr__", [](const GenerationResult& g) {
            return nb::str(nb::str("Generation({!r}, tokens={}, finished={!r})")
                               .attr("format")(g.text, g.tokens.size(), name_of(g.finished)));
        });
}

}  // namespace refold::python
