#include "encoder/text_encoder.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "vocab/normalizer.h"

namespace refold {
namespace {

const Model& checked(const Model& model) {
    if (model.config.causal)
        fail(ErrorCode::unsupported, "model", "'{}' is a decoder - use LanguageModel", model.config.family);
    return model;
}

// Where the tokens of a text begin that is cut so that `limit` ids remain, and how many of them are cut off.
// `plain` are the text's tokens without special ones; it is the last text in `ids`.
struct Cut {
    size_t begin = 0, count = 0;
};
Cut cut_of(const std::vector<int32_t>& ids, const std::vector<int32_t>& plain, size_t limit) {
    const auto text = std::ranges::find_end(ids, plain);
    const size_t others = ids.size() - plain.size(), kept = limit - std::min(limit, others);
    if (plain.empty() || text.empty() || plain.size() < kept) return {};
    return {static_cast<size_t>(text.begin() - ids.begin()) + kept, plain.size() - kept};
}

void erase(std::vector<int32_t>& values, const Cut& cut) {
    const auto first = values.begin() + static_cast<ptrdiff_t>(cut.begin);
    values.erase(first, first + static_cast<ptrdiff_t>(cut.count));
}

}  // namespace

TextEncoder::TextEncoder(const Model& model, const Tokenizer& tokenizer, const EngineOptions& options)
    : family_(model.config.family),
      tokenizer_(tokenizer),
      scores_(model.topology.globals.contains(Slot::score) && model.topology.globals.contains(Slot::pooler)),
      sequence_(checked(model), options) {
    try {
        config_ = embedding_config(model.metadata);
    } catch (const Error&) {
        config_error_ = std::current_exception();
    }
    Json steps = Json::array({{{"type", "Strip"}}});
    if (config_ && config_->lower_case) steps.push_back({{"type", "Lowercase"}});
    const Json json{{"type", "Sequence"}, {"normalizers", steps}};
    normalizer_ = std::make_unique<Normalizer>(JsonView(json, "embedding"));
}

TextEncoder::~TextEncoder() = default;

EmbeddingRule TextEncoder::rule(const EmbeddingChoice& choice) const {
    if (config_error_ && !choice.pools()) std::rethrow_exception(config_error_);
    return embedding_rule(config_, static_cast<size_t>(capabilities().n_embd), choice);
}

std::vector<int32_t> TextEncoder::tokens_of(const std::string& text, TooLong too_long) const {
    const std::string whole = config_ ? (*normalizer_)(config_->prompt + text) : text;
    std::vector<int32_t> ids = tokenizer_.encode(whole, true, true);
    if (too_long == TooLong::kept || (too_long == TooLong::as_configured && !config_)) return ids;
    int64_t limit = capabilities().context;
    if (config_ && config_->max_tokens > 0) limit = std::min(limit, config_->max_tokens);
    if (std::ssize(ids) > limit)
        erase(ids, cut_of(ids, tokenizer_.encode(whole, false, true), static_cast<size_t>(limit)));
    return ids;
}

PairEncoding TextEncoder::pair(const std::string& first, const std::string& second) const {
    PairEncoding pair = tokenizer_.encode_pair(first, second);
    const auto limit = static_cast<size_t>(capabilities().context);
    if (pair.ids.size() <= limit) return pair;
    const std::vector<int32_t> plain = tokenizer_.encode(second, false, true);
    const Cut cut = cut_of(pair.ids, plain, limit);
    if (cut.count == plain.size() || pair.ids.size() - cut.count > limit)
        fail(ErrorCode::input, "encoder",
             "the first text leaves no room for the second: both have {} tokens, the context holds {}",
             pair.ids.size(), limit);
    erase(pair.ids, cut);
    erase(pair.token_types, cut);
    return pair;
}

std::vector<float> TextEncoder::embed(std::span<const int32_t> tokens, const EmbeddingRule& rule) {
    return rule.embedding(encode({tokens, {}, {}}), family_);
}

float TextEncoder::score(const PairEncoding& pair) {
    if (!scores_)
        fail(ErrorCode::unsupported, "model",
             "'{}' has no head that scores pairs of texts (sequence classification with one label)", family_);
    return *encode({pair.ids, pair.token_types, {}}).score;
}

}  // namespace refold
