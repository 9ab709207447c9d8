// The original model and the one that is being made of it, side by side over the calibration text: what
// closed-form corrections (compensation, refit) are solved from.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "calibrate/calibration.h"
#include "calibrate/residual_stream.h"
#include "model/model.h"

namespace refold {

// The processes of group() share the sequences: each sees its own, and who sums up what it has seen sums over
// processes.
class AlignedStreams {
public:
    // Throws Error(unsupported) when the models do not have the same number of positions. Both streams stand
    // before position 0. `calibration` and `original` must outlive this object.
    AlignedStreams(const Model& original, const Model& model, const Calibration& calibration, int threads);

    // What one model computes at a position for one sequence.
    struct Seen {
        std::vector<float> out;  // residual stream behind the position [tokens, n_embd]; see visit()
        std::map<Tap, std::vector<float>> taps;

        // [tokens, features]; empty where the position does not have it.
        std::span<const float> tapped(Tap tap) const;
        // The residual stream behind the attention, where the position begins its FFN: Tap::residual, or
        // `out` without Tap::ffn_output.
        std::vector<float> between() const;
    };
    // One sequence; valid during the visit.
    struct Rows {
        bool held_out;
        int64_t tokens;
        const Seen &original, &modified;
    };
    // Runs `position` of the original and of the model as it is now over all own sequences, with these taps.
    // What the original computes is kept until advance() for all tokens, so ask for few taps of it, and for
    // the same ones in all visits of a position. `only_taps`: the model computes no more than its taps need,
    // and not `out`. Interrupts throw.
    void visit(const Model& model, size_t position, const std::vector<Tap>& original_taps,
               const std::vector<Tap>& taps, const std::function<void(const Rows&)>& see,
               bool only_taps = false);
    // `position` has its final form: both streams go on.
    void advance(const Model& model, size_t position);

    size_t sequences() const { return calibration_.fit.size() + calibration_.held_out.size(); }
    int64_t length() const { return calibration_.options.length; }

private:
    const Model& original_model_;
    const Calibration& calibration_;
    OwnSequences own_;
    ResidualStream original_;
    std::optional<ResidualStream> modified_;  // none while the models have been the same
    // Of the original at seen_position_, by sequence; empty: not visited.
    std::vector<Seen> seen_;
    size_t seen_position_ = 0;
};

// True when a position is what it is in the original: nothing to solve, and the same activations as long as
// this holds for all positions before.
bool is_unchanged(const Model& original, const Model& model, size_t position);

}  // namespace refold
