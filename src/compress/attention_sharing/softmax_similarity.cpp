#include "compress/attention_sharing/softmax_similarity.h"

#include <algorithm>
#include <cmath>

#include "core/group.h"
#include "core/progress.h"
#include "engine/single_sequence.h"
#include "linalg/blas.h"

namespace refold {
namespace {

// Sums of cosines over sequences.
class Cosines {
public:
    explicit Cosines(size_t layers) : layers_(layers), gram_(layers * layers), sums_(layers * layers) {}

    void see(const Tapped& seen) { step_[seen.layer] = {seen.values.begin(), seen.values.end()}; }

    // Compares layers whose activations have the same size.
    void end_step() {
        std::map<size_t, std::vector<size_t>> by_size;
        for (const auto& [layer, values] : step_) by_size[values.size()].push_back(layer);
        for (const auto& [size, layers] : by_size) add(size, layers);
        step_.clear();
    }

    void end_sequence() {
        for (size_t i = 0; i < layers_; ++i) {
            for (size_t j = 0; j < i; ++j) {
                const double norms = std::sqrt(gram_[i * (layers_ + 1)] * gram_[j * (layers_ + 1)]);
                if (norms > 0) sums_[i * layers_ + j] += gram_[i * layers_ + j] / norms;
            }
        }
        std::fill(gram_.begin(), gram_.end(), 0.0);
        ++sequences_;
    }

    // Over the sequences of all processes of group().
    LayerSimilarity mean() const {
        LayerSimilarity out{layers_, sums_};
        double sequences = static_cast<double>(sequences_);
        group().sum(out.values);
        group().sum({&sequences, 1});
        for (double& value : out.values) value /= sequences;
        return out;
    }

private:
    void add(size_t size, const std::vector<size_t>& layers) {
        const size_t n = layers.size();
        rows_.clear();
        for (const size_t p : layers) rows_.insert(rows_.end(), step_.at(p).begin(), step_.at(p).end());
        std::vector<float> products(n * n);
        const auto count = static_cast<int64_t>(n);
        blas::multiply(blas::Op::transposed, blas::Op::plain, {count, count, static_cast<int64_t>(size)},
                       rows_.data(), rows_.data(), products.data());
        for (size_t i = 0; i < n; ++i) {
            for (size_t j = 0; j <= i; ++j)
                gram_[layers[i] * layers_ + layers[j]] += static_cast<double>(products[i * n + j]);
        }
    }

    size_t layers_, sequences_ = 0;
    std::map<size_t, std::vector<float>> step_;  // [head][token][key]
    std::vector<float> rows_;
    std::vector<double> gram_, sums_;
};

}  // namespace

LayerSimilarity softmax_similarity(const Model& model, const Calibration& calibration, int threads) {
    constexpr int64_t kTokens = 64;  // of a step
    const size_t layers = model.topology.layers.size();
    Cosines cosines(layers);
    const auto observer = std::make_shared<Observer>();
    for (size_t p = 0; p < layers; ++p) observer->taps.insert({p, Tap::probabilities});
    observer->see = [&](const Tapped& seen) { cosines.see(seen); };
    EngineOptions options;
    options.threads = threads;
    options.context = calibration.options.length;
    options.chunk = kTokens;
    options.range = LayerRange{0, layers};  // all tokens of the last layer too, and no logits
    options.observer = observer;
    SingleSequence sequence(model, options);
    const auto fit = group().own(calibration.fit), held_out = group().own(calibration.held_out);
    Progress progress("softmax similarity", fit.size() + held_out.size(), "sequences");
    for (const auto* sequences : {&fit, &held_out}) {
        for (const auto& tokens : *sequences) {
            sequence.truncate(0);
            sequence.evaluate_range(std::span<const int32_t>(tokens),
                                    [&](size_t, std::span<const float>) { cosines.end_step(); });
            cosines.end_sequence();
            progress.advance(1);
        }
    }
    progress.finish();
    return cosines.mean();
}

}  // namespace refold
