#include "eval/protocols.h"

#include <algorithm>

#include "core/error.h"
#include "core/sha256.h"
#include "core/text.h"
#include "eval/documents.h"

namespace refold {
namespace {

using enum PerplexityProtocol;

constexpr PerplexityProtocol kProtocols[] = {windows, gptq, llama_cpp, lm_eval};

PerplexityOptions checked(PerplexityOptions o, int64_t least) {
    if (o.context < least)
        fail(ErrorCode::usage, "ppl", "--context must be at least {} for {}, got {}", least,
             protocol_name(o.protocol), o.context);
    if (o.stride != 0 && o.protocol != windows && o.stride != o.context)
        fail(ErrorCode::usage, "ppl", "--stride belongs to --protocol windows; {} has none",
             protocol_name(o.protocol));
    if (o.stride == 0) o.stride = o.context;
    if (o.stride < 1 || o.stride > o.context)
        fail(ErrorCode::usage, "ppl", "--stride must be 1 to --context ({}), got {}", o.context, o.stride);
    if (o.max_windows < 0)
        fail(ErrorCode::usage, "ppl", "--max-windows must not be negative, got {}", o.max_windows);
    return o;
}

std::string hash_of(int32_t first, std::span<const int32_t> rest, size_t first_scored) {
    Sha256 hash;
    const auto begin = static_cast<int64_t>(first_scored);
    hash.update(std::as_bytes(std::span(&begin, 1)));
    hash.update(std::as_bytes(std::span(&first, 1)));
    hash.update(std::as_bytes(rest));
    return hash.hex();
}

// Adds a window that is one item: tokens [begin, begin + size) of the text.
void add_window(PerplexityPlan& plan, size_t begin, size_t size, size_t first_scored,
                std::optional<int32_t> first = std::nullopt) {
    const auto window = std::span<const int32_t>(plan.tokens.front()).subspan(begin, size);
    const int32_t lead = first.value_or(window.front());
    plan.windows.push_back({lead, window.subspan(1), first_scored, plan.items.size()});
    plan.items.push_back({hash_of(lead, window.subspan(1), first_scored)});
}

int64_t limited(int64_t count, int64_t most) { return most > 0 ? std::min(count, most) : count; }

PerplexityPlan plan_gptq(const PerplexityOptions& options, const Tokenizer& tokenizer,
                         const std::string& text, const std::string& name) {
    std::vector<int32_t> tokens = tokenizer.encode(wikitext_rows_joined(text), tokenizer.adds_bos(), true);
    const auto count = static_cast<int64_t>(tokens.size());
    if (count < options.context)
        fail(
            ErrorCode::input, "ppl",
            "'{}' has {} tokens: gptq needs a whole window of {} - give a longer text or a smaller --context",
            name, count, options.context);
    PerplexityPlan plan = plan_windows(std::move(tokens), options);
    plan.bos = tokenizer.adds_bos() ? "text" : "none";
    return plan;
}

PerplexityPlan plan_lm_eval(const PerplexityOptions& given, const Tokenizer& tokenizer,
                            const std::string& text, const std::string& name) {
    const PerplexityOptions o = checked(given, 1);
    const std::optional<int32_t> prefix = tokenizer.bos() ? tokenizer.bos() : tokenizer.eos();
    if (!prefix)
        fail(ErrorCode::input, "ppl", "the vocabulary has neither BOS nor EOS, which lm-eval begins with");
    Documents split = split_documents(text, name);
    const auto count = static_cast<int64_t>(split.documents.size());
    split.documents.resize(static_cast<size_t>(limited(count, o.max_windows)));
    const std::string prefix_text = tokenizer.piece(*prefix, true);
    PerplexityPlan plan;
    plan.options = o;
    plan.bos = "document";
    plan.form = document_form_name(split.form);
    for (const Document& document : split.documents) {
        const bool special = !(!prefix_text.empty() && document.text.starts_with(prefix_text));
        add_rolling_windows(plan, tokenizer.encode(document.text, special && tokenizer.adds_bos(), true),
                            *prefix, {document.hash, document.words, document.bytes});
    }
    if (plan.windows.empty())
        fail(ErrorCode::input, "ppl", "'{}' has no document with a token - give another text", name);
    return plan;
}

}  // namespace

const char* protocol_name(PerplexityProtocol protocol) {
    switch (protocol) {
        case windows: break;
        case gptq: return "gptq";
        case llama_cpp: return "llama.cpp";
        case lm_eval: return "lm-eval";
    }
    return "windows";
}

PerplexityProtocol protocol_from_name(const std::string& name) {
    std::vector<std::string> names;
    for (const PerplexityProtocol protocol : kProtocols) {
        if (name == protocol_name(protocol)) return protocol;
        names.emplace_back(protocol_name(protocol));
    }
    fail(ErrorCode::usage, "ppl", "unknown protocol '{}' - {}", name, suggestion(name, names));
}

std::string protocol_text(const PerplexityOptions& o) {
    switch (o.protocol) {
        case windows: break;
        case gptq:
            return fmt::format("rows joined by blank lines, windows of {}, all tokens but the first scored",
                               o.context);
        case llama_cpp: return fmt::format("chunks of {}, second half scored", o.context);
        case lm_eval:
            return fmt::format(
                "document by document, rolling windows of {}, per word and byte of the original", o.context);
    }
    return fmt::format("windows of {} every {}, each token scored once", o.context, o.stride);
}

int64_t default_context(PerplexityProtocol protocol, int64_t model_context) {
    switch (protocol) {
        case windows: break;
        case gptq: return 2048;
        case llama_cpp: return 512;
        case lm_eval: return model_context;
    }
    return 1024;
}

PerplexityPlan plan_perplexity(const PerplexityOptions& options, const Tokenizer& tokenizer,
                               const std::string& text, const std::string& name) {
    switch (options.protocol) {
        case windows: break;
        case gptq: return plan_gptq(options, tokenizer, text, name);
        case llama_cpp: {
            // llama-perplexity drops the newline at the end of the file.
            const bool newline = text.ends_with('\n');
            const auto bos = tokenizer.adds_bos() ? tokenizer.bos() : std::nullopt;
            return plan_llama_cpp(
                tokenizer.encode(newline ? text.substr(0, text.size() - 1) : text, true, false), bos,
                options);
        }
        case lm_eval: return plan_lm_eval(options, tokenizer, text, name);
    }
    PerplexityPlan plan = plan_windows(tokenizer.encode(text, tokenizer.adds_bos(), false), options);
    plan.bos = tokenizer.adds_bos() ? "text" : "none";
    return plan;
}

PerplexityPlan plan_windows(std::vector<int32_t> tokens, const PerplexityOptions& given) {
    PerplexityPlan plan;
    plan.options = checked(given, 2);
    const int64_t context = plan.options.context, stride = plan.options.stride;
    const auto total = static_cast<int64_t>(tokens.size());
    if (total < 2) fail(ErrorCode::input, "ppl", "the text has {} tokens; at least 2 are needed", total);
    plan.tokens.push_back(std::move(tokens));
    const int64_t count =
        limited(total < context ? 1 : (total - context) / stride + 1, plan.options.max_windows);
    for (int64_t w = 0; w < count; ++w) {
        const int64_t first_scored = w == 0 ? 1 : std::max<int64_t>(1, context - stride);
        add_window(plan, static_cast<size_t>(w * stride), static_cast<size_t>(std::min(context, total)),
                   static_cast<size_t>(first_scored));
    }
    return plan;
}

PerplexityPlan plan_llama_cpp(std::vector<int32_t> tokens, std::optional<int32_t> bos,
                              const PerplexityOptions& given) {
    PerplexityPlan plan;
    plan.options = checked(given, 3);
    const int64_t context = plan.options.context;
    const auto total = static_cast<int64_t>(tokens.size());
    if (total < 2 * context)
        fail(ErrorCode::input, "ppl",
             "the text has {} tokens: llama.cpp needs two chunks of {} - give a longer text or a smaller "
             "--context",
             total, context);
    plan.bos = bos ? "window" : "none";
    plan.tokens.push_back(std::move(tokens));
    const int64_t chunks = limited(total / context, plan.options.max_windows);
    for (int64_t c = 0; c < chunks; ++c)
        add_window(plan, static_cast<size_t>(c * context), static_cast<size_t>(context),
                   static_cast<size_t>(context / 2 + 1), bos);
    return plan;
}

void add_rolling_windows(PerplexityPlan& plan, std::vector<int32_t> tokens, int32_t prefix,
                         const PerplexityItem& item) {
    plan.tokens.push_back(std::move(tokens));
    plan.items.push_back(item);
    const auto all = std::span<const int32_t>(plan.tokens.back());
    const auto context = static_cast<size_t>(plan.options.context);
    for (size_t done = 0; done < all.size();) {
        const size_t end = std::min(done + context, all.size());
        // As many tokens as fit; the last one predicts nothing.
        const bool first = done == 0;
        const size_t begin = first ? 0 : end - context;
        plan.windows.push_back({first ? prefix : all[begin - 1], all.subspan(begin, end - begin),
                                done - begin + 1, plan.items.size() - 1});
        done = end;
    }
}

}  // namespace refold
