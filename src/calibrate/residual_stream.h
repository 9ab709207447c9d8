// Moves the residual stream of sequences through a model layer by layer, so that only the layers being worked
// on are loaded.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/single_sequence.h"
#include "model/model.h"

namespace refold {

// The float32 inputs of one layer for all tokens of all sequences.
class ResidualStream {
public:
    // Embeds the sequences, of at most `length` tokens each. The stream then holds the inputs of layer 0.
    ResidualStream(const Model& model, const std::vector<std::vector<int32_t>>& sequences, int64_t length,
                   int threads);

    size_t sequences() const { return residual_.size(); }
    // The layer whose inputs the stream holds. It does not move past a layer whose attention other layers use
    // until the last of these is done.
    size_t layer() const { return layer_; }
    // The input of layer() [tokens, n_embd].
    std::span<const float> residual(size_t sequence) const { return residual_[sequence]; }
    // At the same layer, with these inputs in place of its own.
    ResidualStream with(std::vector<std::vector<float>> residual) const;

    // A run of the layers layer() to `last` of a model, which it loads.
    class Pass {
    public:
        // Records the given taps of layer `last`. With `only_taps` it computes no more than these need.
        Pass(const ResidualStream& stream, const Model& model, size_t last,
             const std::vector<Tap>& taps_of_last, bool only_taps = false);
        // Runs a whole sequence from the stream's residual; tapped() then has its taps until the next call.
        // Returns the residual after `last` [tokens, n_embd], or nothing with `only_taps`.
        std::span<const float> run(size_t sequence);
        // [tokens, features], or empty when the layer does not have this activation (a dropped FFN).
        std::span<const float> tapped(Tap tap) const;
        // The same, which the pass has no longer.
        std::vector<float> take(Tap tap);

    private:
        struct TapValues;
        const ResidualStream& stream_;
        std::shared_ptr<TapValues> taps_;
        std::unique_ptr<SingleSequence> sequence_;
        std::vector<float> out_;
    };

    // Call when layer `last` has its final form in `model`. Moves the stream past `last`, or as far as it can
    // while later layers use the attention of earlier ones.
    void advance(const Model& model, size_t last);
    // The same with the residuals that a Pass to `last` returned, for a model without shared attention.
    void advance(size_t last, std::vector<std::vector<float>> residual);

private:
    ResidualStream(int64_t length, int threads, size_t layer, std::vector<std::vector<float>> residual)
        : residual_(std::move(residual)), length_(length), threads_(threads), layer_(layer) {}
    EngineOptions options(std::optional<LayerRange> range) const;

    std::vector<std::vector<float>> residual_;  // by sequence
    int64_t length_;
    int threads_;
    size_t layer_ = 0;
};

}  // namespace refold
