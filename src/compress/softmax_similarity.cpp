#include "compress/softmax_similarity.h"

#include <cmath>

#include "core/progress.h"
#include "engine/engine.h"
#include "linalg/blas.h"

namespace refold {
namespace {

// Sums of cosines over tokens.
class Cosines {
public:
    explicit Cosines(size_t layers) : layers_(layers), sums_(layers * layers) {}

    void see(const Tapped& seen) {
        step_[seen.position] = {seen.values.begin(), seen.values.end()};
        tokens_ = static_cast<size_t>(seen.tokens);
        keys_ = static_cast<size_t>(seen.features);
    }

    // Layers of equal size are compared.
    void end_step() {
        std::map<size_t, std::vector<size_t>> by_size;
        for (const auto& [position, values] : step_) by_size[values.size()].push_back(position);
        for (const auto& [size, positions] : by_size) {
            for (size_t t = 0; t < tokens_; ++t) add_token(positions, size / (tokens_ * keys_), t);
        }
        count_ += tokens_;
        step_.clear();
    }

    LayerSimilarity mean() const {
        LayerSimilarity out{layers_, sums_};
        for (double& value : out.values) value /= static_cast<double>(count_);
        return out;
    }

private:
    void add_token(const std::vector<size_t>& positions, size_t heads, size_t token) {
        const size_t n = positions.size(), width = heads * keys_;
        rows_.resize(n * width);
        for (size_t i = 0; i < n; ++i) {
            const std::vector<float>& from = step_.at(positions[i]);
            for (size_t h = 0; h < heads; ++h)
                std::copy_n(from.data() + (h * tokens_ + token) * keys_, keys_,
                            rows_.data() + i * width + h * keys_);
        }
        gram_.resize(n * n);
        const auto count = static_cast<int64_t>(n);
        blas::multiply(blas::Op::transposed, blas::Op::plain, {count, count, static_cast<int64_t>(width)},
                       rows_.data(), rows_.data(), gram_.data());
        for (size_t i = 0; i < n; ++i) {
            for (size_t j = 0; j < i; ++j) {
                const double norms =
                    std::sqrt(static_cast<double>(gram_[i * n + i]) * static_cast<double>(gram_[j * n + j]));
                if (norms > 0)
                    sums_[positions[i] * layers_ + positions[j]] +=
                        static_cast<double>(gram_[i * n + j]) / norms;
            }
        }
    }

    size_t layers_, tokens_ = 0, keys_ = 0, count_ = 0;
    std::map<size_t, std::vector<float>> step_;  // [head][token][key]
    std::vector<float> rows_, gram_;
    std::vector<double> sums_;
};

}  // namespace

LayerSimilarity softmax_similarity(const Model& model, const Calibration& calibration, int threads) {
    constexpr int64_t kTokens = 64;  // of a step
    const size_t layers = model.topology.positions.size();
    Cosines cosines(layers);
    const auto observer = std::make_shared<Observer>();
    for (size_t p = 0; p < layers; ++p) observer->taps.insert({p, Tap::probabilities});
    observer->see = [&](const Tapped& seen) { cosines.see(seen); };
    EngineOptions options;
    options.threads = threads;
    options.context = calibration.options.length;
    options.chunk = kTokens;
    options.range = PositionRange{0, layers};  // all tokens of the last layer too, and no logits
    options.observer = observer;
    Engine engine(model, options);
    Progress progress("softmax similarity", calibration.fit.size() + calibration.held_out.size(),
                      "sequences");
    for (const auto* sequences : {&calibration.fit, &calibration.held_out}) {
        for (const auto& tokens : *sequences) {
            engine.truncate(0);
            engine.evaluate_range(std::span<const int32_t>(tokens),
                                  [&](size_t, std::span<const float>) { cosines.end_step(); });
            progress.advance(1);
        }
    }
    progress.finish();
    return cosines.mean();
}

}  // namespace refold
