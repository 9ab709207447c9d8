#include "refold/embedding.h"

#include <cmath>

#include "api/impl.h"
#include "core/error.h"
#include "encoder/text_encoder.h"

namespace refold {
namespace {

EmbeddingChoice choice_of(std::optional<Pooling> pooling, std::optional<bool> normalize) {
    EmbeddingChoice out{.normalize = normalize};
    if (!pooling) return out;
    switch (*pooling) {
        case Pooling::model: out.of_model = true; break;
        case Pooling::mean: out.pooling = RowPooling::mean; break;
        case Pooling::first: out.pooling = RowPooling::cls; break;
        case Pooling::max: out.pooling = RowPooling::max; break;
        case Pooling::last: out.pooling = RowPooling::last; break;
    }
    return out;
}

}  // namespace

struct Encoder::Impl {
    Impl(const ModelFile& file, const EncoderOptions& options)
        : info(file.info()),
          tokenizer(file.path()),
          encoder(file.impl().model, tokenizer, engine_options(options)) {}

    static EngineOptions engine_options(const EncoderOptions& options) {
        EngineOptions out;
        out.threads = options.threads;
        out.context = options.context;
        out.f32 = options.f32;
        return out;
    }

    const ModelInfo info;
    const Tokenizer tokenizer;
    TextEncoder encoder;
};

Encoder::Encoder(const std::string& model, const EncoderOptions& options)
    : impl_(std::make_unique<Impl>(ModelFile(model), options)) {}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;

const ModelInfo& Encoder::info() const { return impl_->info; }
const Tokenizer& Encoder::tokenizer() const { return impl_->tokenizer; }

EncodedText Encoder::encode(std::span<const int32_t> tokens) {
    Encoding encoding = impl_->encoder.encode({tokens, {}, {}});
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
    const EmbeddingRule rule = impl_->encoder.rule(choice_of(pooling, normalize));
    std::vector<float> out;
    out.reserve(texts.size() * rule.size);
    for (size_t i = 0; i < texts.size(); ++i) {
        const std::vector<float> embedding = impl_->encoder.embed(impl_->encoder.tokens_of(texts[i]), rule);
        out.insert(out.end(), embedding.begin(), embedding.end());
        if (done) done(i + 1);
    }
    return out;
}

size_t Encoder::embedding_size(std::optional<Pooling> pooling) const {
    return impl_->encoder.rule(choice_of(pooling, {})).size;
}

bool Encoder::configures_embeddings() const { return impl_->encoder.configures_embeddings(); }

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
