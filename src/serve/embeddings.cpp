#include "serve/embeddings.h"

#include <fmt/ranges.h>

#include "core/error.h"

namespace refold {
namespace {

// Throws ApiError (400) for a text whose tokens do not fit.
std::vector<int32_t> tokens_of(const ServedModel& model, const ApiPrompt& text, size_t index,
                               const char* field, TextEncoder::TooLong too_long) {
    std::vector<int32_t> tokens;
    if (const auto* const ids = std::get_if<std::vector<int32_t>>(&text)) {
        check_ids(*ids, model.info.n_vocab, field);
        tokens = *ids;
    } else {
        tokens = model.encoder->encoder().tokens_of(std::get<std::string>(text), too_long);
    }
    const auto count = static_cast<int64_t>(tokens.size());
    if (count == 0) refuse(field, "text {} is empty", index);
    if (count > model.info.context)
        throw ApiError(400,
                       fmt::format("'{}': text {} has {} tokens, the context holds {}", field, index, count,
                                   model.info.context),
                       field, "context_length_exceeded");
    return tokens;
}

}  // namespace

Embeddings embed(Service& service, const ServedModel& model, std::span<const ApiPrompt> texts,
                 const char* field, TextEncoder::TooLong too_long) {
    EncoderQueue& queue = model.encoding();
    try {
        const EmbeddingRule rule = queue.encoder().rule();
        std::vector<std::vector<int32_t>> tokens;
        Embeddings out;
        for (const ApiPrompt& text : texts) {
            service.check();
            tokens.push_back(tokens_of(model, text, tokens.size(), field, too_long));
            out.tokens += std::ssize(tokens.back());
        }
        HttpServer::exchange().prompt_tokens = out.tokens;
        out.vectors.resize(texts.size());
        queue.run(
            texts.size(),
            [&](TextEncoder& encoder, size_t text) {
                out.vectors[text] = encoder.embed(tokens[text], rule);
                queue.count_tokens(tokens[text].size());
            },
            [&] { service.check_running(); });
        return out;
    } catch (const Error& error) {
        throw api_error(error, field);
    }
}

void check_dimensions(const std::optional<int64_t>& dimensions, const ServedModel& model) {
    const auto size = static_cast<int64_t>(model.encoding().encoder().rule().size);
    if (dimensions && *dimensions != size)
        refuse("dimensions", "got {}, but the embeddings of '{}' have {} and cannot be cut - leave it out",
               *dimensions, model.info.name, size);
}

std::string json_array(std::span<const float> values) { return fmt::format("[{}]", fmt::join(values, ",")); }

}  // namespace refold
