// The residual streams of the original model and of the one that is made from it, side by side over the
// calibration text. Closed-form corrections (compensation, refit) are solved from them.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "calibrate/calibration.h"
#include "calibrate/residual_stream.h"
#include "model/model.h"

namespace refold {

// The processes of group() share the sequences: each has its own, and sums over sequences must be summed over
// processes.
class AlignedStreams {
public:
    // Both streams start before layer 0. Throws Error(unsupported) when the models differ in the number of
    // layers. `calibration` and `original` must outlive this object.
    AlignedStreams(const Model& original, const Model& model, const Calibration& calibration, int threads);

    // Activations of one model in a layer for one sequence.
    struct Activations {
        std::vector<float> out;  // residual stream after the layer [tokens, n_embd]; see visit()
        std::map<Tap, std::vector<float>> taps;

        // [tokens, features]; empty when the layer does not have it.
        std::span<const float> tapped(Tap tap) const;
        // The residual stream between attention and FFN: Tap::residual, or `out` minus Tap::ffn_output.
        std::vector<float> between() const;
    };
    // One sequence; valid during the visit.
    struct Rows {
        size_t sequence;  // of this process
        bool held_out;
        int64_t tokens;
        const Activations &original, &modified;
        // The modified stream before the module that the taps are of, where the layer adds_maps_alone().
        std::span<const float> before = {};
        std::span<const float> goal = {};  // see OutputSolver::visit_output()
    };
    // What a visit runs. `taps`: the model computes only what its taps need, and not `out`. `model_taps`: and
    // nothing of the original, whose activations are empty.
    enum class Extent { whole, taps, model_taps };
    // Runs `layer` of the original and of the present model over the sequences of this process, with these
    // taps. The activations of the original are kept for all tokens until advance(): ask for few taps of it,
    // and for the same ones in all visits of a layer. Throws on an interrupt.
    void visit(const Model& model, size_t layer, const std::vector<Tap>& original_taps,
               const std::vector<Tap>& taps, const std::function<void(const Rows&)>& see,
               Extent extent = Extent::whole);
    // What attention and FFN of the layer add to the stream is the product of their output map, and its bias:
    // visits show the stream before them.
    bool adds_maps_alone(const Model& model, size_t layer) const;
    // The original's residual stream where a later module reads it, by sequence of this process: the
    // attention of `layer` (its index may be that of layers), or its FFN, `between` attention and FFN.
    std::vector<std::vector<float>> original_before(size_t layer, bool between);
    // `layer` has its final form: both streams advance past it.
    void advance(const Model& model, size_t layer);

    size_t sequences() const { return calibration_.fit.size() + calibration_.held_out.size(); }
    int64_t length() const { return calibration_.options.length; }

private:
    // The stream between attention and FFN of the layer that the modified stream is before. It is the same as
    // long as the layer's attention is.
    struct Middle {
        Model model;  // it was computed with
        ResidualStream stream;
    };

    // The inputs of the output map of attention or FFN, by sequence, as the last visit of the layer saw them.
    // The map is what changes next, and the stream after it is computed from them.
    struct Ending {
        bool of_ffn;
        Model model;
        std::vector<std::vector<float>> inputs;
    };

    ResidualStream& modified() { return modified_ ? *modified_ : original_; }
    const ResidualStream& middle(const Model& model, size_t layer);
    std::optional<std::vector<std::vector<float>>> ended(const Model& model, size_t layer, bool of_ffn,
                                                         const ResidualStream& before) const;
    void catch_up(size_t layer);

    const Model& original_model_;
    const Calibration& calibration_;
    OwnSequences own_;
    ResidualStream original_;                 // before the layer, or behind where no visit needed it
    std::optional<ResidualStream> modified_;  // none as long as all layers are the original's
    std::optional<Middle> middle_;
    std::optional<Ending> ending_;
    // Of the original at visited_, by sequence; empty: not visited.
    std::vector<Activations> activations_;
    size_t visited_ = 0;
};

// True when a layer is what it is in the original. If all layers before are, too, its activations are the
// same.
bool is_unchanged(const Model& original, const Model& model, size_t layer);
// The same of one slot.
bool is_unchanged(const Model& original, const Model& model, size_t layer, Slot slot);

}  // namespace refold
