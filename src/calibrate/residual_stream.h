// The residual stream of sequences of a model, position by position, so that no more of a model is loaded
// than is being worked on.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "model/model.h"

namespace refold {

// float32 activations of all tokens of all sequences before one position.
class ResidualStream {
public:
    // Embeds the sequences, of at most `length` tokens: the stream stands before position 0.
    ResidualStream(const Model& model, const std::vector<std::vector<int32_t>>& sequences, int64_t length,
                   int threads);

    size_t sequences() const { return residual_.size(); }
    // The position that the stream stands before. A position that others take their attention from stays
    // behind it until the last of these is done.
    size_t position() const { return position_; }
    // Before position() [tokens, n_embd].
    std::span<const float> residual(size_t sequence) const { return residual_[sequence]; }

    // Positions position() to `last` of a model, loaded and ready to run.
    class Pass {
    public:
        // Shows the taps of position `last`; whole sequences at once. `only_taps`: computes no more than they
        // need.
        Pass(const ResidualStream& stream, const Model& model, size_t last,
             const std::vector<Tap>& taps_of_last, bool only_taps = false);
        // Runs a sequence from the stream's residual. Taps of position `last` lie in tapped() until the next
        // call. Returns the residual stream behind `last` [tokens, n_embd]; nothing with `only_taps`.
        std::span<const float> run(size_t sequence);
        // [tokens, features]; empty where the position does not have it (an FFN that was dropped).
        std::span<const float> tapped(Tap tap) const;

    private:
        struct Taken;
        const ResidualStream& stream_;
        std::shared_ptr<Taken> taken_;
        std::unique_ptr<Engine> engine_;
        std::vector<float> out_;
    };

    // Position `last` has its final form in `model`: the stream moves behind it, as far as attention that
    // later positions take from earlier ones allows.
    void advance(const Model& model, size_t last);
    // The same with residuals that a Pass to `last` has given, of a model whose attention is its own.
    void advance(size_t last, std::vector<std::vector<float>> residual);

private:
    EngineOptions options(std::optional<PositionRange> range) const;

    std::vector<std::vector<float>> residual_;  // by sequence
    int64_t length_;
    int threads_;
    size_t position_ = 0;
};

}  // namespace refold
