#include "refold/embedding.h"

#include <cmath>

#include "api/impl.h"
#include "core/error.h"
#include "engine/single_sequence.h"

namespace refold {

struct Encoder::Impl {
    Impl(const ModelFile& file, const EncoderOptions& options)
        : info(file.info()),
          tokenizer(file.path()),
          sequence(checked(file, info).impl().model, engine_options(options)) {}

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

    const ModelInfo info;
    const Tokenizer tokenizer;
    SingleSequence sequence;
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

std::vector<float> Encoder::embed(const std::string& text, Pooling pooling, bool normalize) {
    EncodedText encoded = encode(text);
    const auto width = static_cast<size_t>(impl_->info.n_embd);
    const size_t rows = pooling == Pooling::mean ? encoded.tokens.size() : 1;
    std::vector<double> sums(width);
    for (size_t i = 0; i < rows * width && pooling != Pooling::model; ++i)
        sums[i % width] += encoded.last_hidden_state[i];
    if (pooling == Pooling::model) {
        if (encoded.pooled.empty())
            fail(ErrorCode::unsupported, "model", "'{}' has no pooler - use Pooling::mean or ::first",
                 impl_->info.architecture);
        sums.assign(encoded.pooled.begin(), encoded.pooled.end());
    }
    double squares = 0;
    for (double& value : sums) {
        value /= static_cast<double>(rows);
        squares += value * value;
    }
    const double length = normalize && squares > 0 ? std::sqrt(squares) : 1;
    std::vector<float> out;
    for (const double value : sums) out.push_back(static_cast<float>(value / length));
    return out;
}

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
