#include "refold/embedding.h"

#include <algorithm>
#include <cmath>
#include <exception>

#include "api/impl.h"
#include "core/error.h"
#include "engine/single_sequence.h"
#include "model/embedding_config.h"
#include "vocab/normalizer.h"

namespace refold {
namespace {

// How a text becomes a vector: the model's configuration with what a caller changes.
struct EmbeddingRule {
    bool of_model = false;            // by the model's own pooler
    std::vector<RowPooling> pooling;  // else
    std::vector<EmbeddingStep> steps;
    size_t width = 0, size = 0;  // of a row and of an embedding

    std::vector<float> embedding(const EncodedText& text) const {
        std::vector<double> x(text.pooled.begin(), text.pooled.end());
        if (!of_model) x.clear();
        for (const RowPooling how : pooling) {
            const std::vector<double> part = pooled(how, text.last_hidden_state, width);
            x.insert(x.end(), part.begin(), part.end());
        }
        for (const EmbeddingStep& step : steps) {
            if (step.dense) {
                x = (*step.dense)(x);
            } else {
                scale_to_length_1(x);
            }
        }
        return {x.begin(), x.end()};
    }
};

RowPooling row_pooling(Pooling pooling) {
    switch (pooling) {
        case Pooling::first: return RowPooling::cls;
        case Pooling::max: return RowPooling::max;
        case Pooling::last: return RowPooling::last;
        default: return RowPooling::mean;
    }
}

// Cuts the text of `ids`, which are `plain` with special tokens around them, so that `limit` ids remain.
std::vector<int32_t> cut(std::vector<int32_t> ids, const std::vector<int32_t>& plain, size_t limit) {
    const auto text = std::ranges::search(ids, plain);
    const size_t special = ids.size() - plain.size(), kept = limit - std::min(limit, special);
    if (plain.empty() || text.empty() || plain.size() < kept) return ids;
    ids.erase(text.begin() + static_cast<ptrdiff_t>(kept), text.end());
    return ids;
}

}  // namespace

struct Encoder::Impl {
    Impl(const ModelFile& file, const EncoderOptions& options)
        : info(file.info()),
          tokenizer(file.path()),
          sequence(checked(file, info).impl().model, engine_options(options)) {
        try {
            config = embedding_config(file.impl().model.metadata);
        } catch (const Error&) {
            config_error = std::current_exception();
        }
        Json steps = Json::array({{{"type", "Strip"}}});
        if (config && config->lower_case) steps.push_back({{"type", "Lowercase"}});
        const Json json{{"type", "Sequence"}, {"normalizers", steps}};
        normalizer = Normalizer(JsonView(json, "embedding"));
    }

    static const ModelFile& checked(const ModelFile& file, const ModelInfo& info) {
        if (info.causal)
            fail(ErrorCode::unsupported, "model", "'{}' is a decoder - use LanguageModel", info.architecture);
        return file;
    }
    static EngineOptions engine_options(const EncoderOptions& options) {
        EngineOptions out;
        out.threads = options.threads;
        out.context = options.context;
        out.f32 = options.f32;
        return out;
    }

    EmbeddingRule rule(std::optional<Pooling> pooling, std::optional<bool> normalize) const {
        if (config_error && !pooling) std::rethrow_exception(config_error);
        EmbeddingRule out;
        out.width = static_cast<size_t>(info.n_embd);
        out.of_model = pooling == Pooling::model;
        if (!out.of_model) {
            out.pooling = pooling  ? std::vector{row_pooling(*pooling)}
                          : config ? config->pooling
                                   : std::vector{RowPooling::mean};
        }
        if (config) out.steps = config->steps;
        if (normalize == false)
            std::erase_if(out.steps, [](const EmbeddingStep& step) { return !step.dense; });
        const bool ends_normalized = !out.steps.empty() && !out.steps.back().dense;
        if (normalize.value_or(!config) && !ends_normalized) out.steps.emplace_back();
        out.size = out.width * std::max<size_t>(out.pooling.size(), 1);
        for (const EmbeddingStep& step : out.steps) {
            if (!step.dense) continue;
            if (step.dense->in != out.size) {
                fail(ErrorCode::usage, "embedding",
                     "the pooling gives {} elements, but the model's dense module takes {} - leave the "
                     "pooling out",
                     out.size, step.dense->in);
            }
            out.size = step.dense->out;
        }
        return out;
    }

    std::vector<int32_t> tokens_of(const std::string& text) const {
        if (!config) return tokenizer.encode(text, true, true);
        const std::string whole = normalizer(config->prompt + text);
        std::vector<int32_t> ids = tokenizer.encode(whole, true, true);
        const int64_t context = sequence.capabilities().context;
        const auto limit =
            static_cast<size_t>(config->max_tokens > 0 ? std::min(config->max_tokens, context) : context);
        if (ids.size() <= limit) return ids;
        return cut(std::move(ids), tokenizer.encode(whole, false, true), limit);
    }

    const ModelInfo info;
    const Tokenizer tokenizer;
    SingleSequence sequence;
    std::optional<EmbeddingConfig> config;
    std::exception_ptr config_error;  // why it cannot be followed
    Normalizer normalizer;            // of the configuration
};

Encoder::Encoder(const std::string& model, const EncoderOptions& options)
    : impl_(std::make_unique<Impl>(ModelFile(model), options)) {}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;

const ModelInfo& Encoder::info() const { return impl_->info; }
const Tokenizer& Encoder::tokenizer() const { return impl_->tokenizer; }

EncodedText Encoder::encode(std::span<const int32_t> tokens) {
    Encoding encoding = impl_->sequence.encode({tokens, {}, {}});
    return {
        {tokens.begin(), tokens.end()}, std::move(encoding.last_hidden_state), std::move(encoding.pooled)};
}

EncodedText Encoder::encode(const std::string& text) {
    return encode(impl_->tokenizer.encode(text, true, true));
}

std::vector<float> Encoder::embed(const std::string& text, std::optional<Pooling> pooling,
                                  std::optional<bool> normalize) {
    return embed(std::span(&text, 1), pooling, normalize);
}

std::vector<float> Encoder::embed(std::span<const std::string> texts, std::optional<Pooling> pooling,
                                  std::optional<bool> normalize, const std::function<void(size_t)>& done) {
    const EmbeddingRule rule = impl_->rule(pooling, normalize);
    std::vector<float> out;
    out.reserve(texts.size() * rule.size);
    for (size_t i = 0; i < texts.size(); ++i) {
        const EncodedText encoded = encode(impl_->tokens_of(texts[i]));
        if (rule.of_model && encoded.pooled.empty())
            fail(ErrorCode::unsupported, "model", "'{}' has no pooler - use another pooling",
                 impl_->info.architecture);
        const std::vector<float> embedding = rule.embedding(encoded);
        out.insert(out.end(), embedding.begin(), embedding.end());
        if (done) done(i + 1);
    }
    return out;
}

size_t Encoder::embedding_size(std::optional<Pooling> pooling) const { return impl_->rule(pooling, {}).size; }

bool Encoder::configures_embeddings() const { return impl_->config.has_value(); }

double cosine_similarity(std::span<const float> a, std::span<const float> b) {
    if (a.size() != b.size())
        fail(ErrorCode::usage, "embedding", "vectors of {} and {} elements", a.size(), b.size());
    double dot = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
        dot += x * y;
        aa += x * x;
        bb += y * y;
    }
    return dot / std::sqrt(aa * bb);
}

}  // namespace refold
