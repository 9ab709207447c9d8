#include "compress/training/divergence.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "calibrate/residual_stream.h"
#include "core/interrupt.h"
#include "exit/log_softmax.h"

namespace refold {
namespace {

constexpr size_t kRows = 256;  // tokens whose logits are in memory at a time

}  // namespace

bool HeldOutDivergence::possible(const Model& model) { return OutputLayer::possible(model); }

HeldOutDivergence::HeldOutDivergence(const Model& original,
                                     const std::vector<std::vector<int32_t>>& sequences, int threads)
    : sequences_(sequences), threads_(threads), output_(original), original_(final_streams(original)) {}

std::vector<std::vector<float>> HeldOutDivergence::final_streams(const Model& model) const {
    size_t length = 0;
    for (const auto& sequence : sequences_) length = std::max(length, sequence.size());
    ResidualStream stream(model, sequences_, static_cast<int64_t>(length), threads_);
    for (size_t p = 0; p < model.topology.layers.size(); ++p) {
        check_interrupt();
        stream.advance(model, p);
    }
    std::vector<std::vector<float>> out;
    for (size_t s = 0; s < stream.sequences(); ++s) {
        const auto rows = stream.residual(s);
        out.emplace_back(rows.begin(), rows.end());
    }
    return out;
}

double HeldOutDivergence::of(const Model& model) const {
    const OutputLayer output(model);
    const auto vocabulary = static_cast<size_t>(output.vocabulary());
    const auto width = static_cast<size_t>(model.config.n_embd);
    const auto streams = final_streams(model);
    double sum = 0;
    size_t tokens = 0;
    for (size_t s = 0; s < streams.size(); ++s) {
        const std::span<const float> own = streams[s], before = original_[s];
        for (size_t at = 0; at < own.size(); at += kRows * width) {
            const size_t count = std::min(kRows * width, own.size() - at);
            const std::vector<float> a = output_.logits(before.subspan(at, count)),
                                     b = output.logits(own.subspan(at, count));
            for (size_t row = 0; row < a.size(); row += vocabulary, ++tokens)
                sum += kl_divergence(std::span(a).subspan(row, vocabulary),
                                     std::span(b).subspan(row, vocabulary));
        }
    }
    const double mean = sum / static_cast<double>(tokens);
    return std::isfinite(mean) ? mean : std::numeric_limits<double>::infinity();
}

}  // namespace refold
