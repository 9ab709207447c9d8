// How much the next token's distribution depends on single layers.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "calibrate/calibration.h"
#include "compress/compensation/next_token_metric.h"
#include "engine/single_sequence.h"
#include "model/model.h"

namespace refold {

// The first `tokens` tokens of the calibration text that is fitted, in sequences of at most 256.
std::vector<std::vector<int32_t>> probe_sequences(const Calibration& calibration, int64_t tokens);

// Models of up to half a billion parameters are compared in float32; larger ones as they are stored, so that
// one of 7 billion in F16 stays in the mapped file instead of taking 27 GB.
bool is_compared_in_float32(const Model& model);

// Compares the final residual streams of models that differ from a model in one layer. The model's layers
// stand ready in short runs, so that a disturbed model loads one of them anew; layers have to come in order.
// On a device one run is loaded at a time (loads_layer_by_layer()).
class LayerProbes {
public:
    // `model` must outlive this object.
    LayerProbes(const Model& model, std::vector<std::vector<int32_t>> sequences, int threads);

    // Mean Kullback-Leibler divergence of the next token in nats, by NextTokenMetric. Not smaller than in a
    // call before: `layer`, which alone differs in `disturbed`.
    double divergence(const Model& disturbed, size_t layer);

private:
    void advance(std::vector<std::vector<float>>& streams, size_t run);
    std::unique_ptr<SingleSequence> loaded(const Model& model, size_t run);
    std::vector<float> difference(std::span<const float> a, std::span<const float> b) const;

    const Model& model_;
    std::vector<std::vector<int32_t>> sequences_;
    NextTokenMetric metric_;
    EngineOptions options_;
    std::vector<size_t> ends_;                           // of the runs
    std::vector<std::unique_ptr<SingleSequence>> runs_;  // of the model; null where not loaded
    size_t at_ = 0;                                      // a run, and
    std::vector<std::vector<float>> inputs_;             // its inputs by sequence
    std::vector<std::vector<float>> final_;              // by sequence
};

}  // namespace refold
