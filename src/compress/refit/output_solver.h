// Solves the output maps of a model's layers in forward order, so that the residual stream is the original's
// again: the core of refit. Methods that change a layer for other reasons use it between their changes.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/aligned_streams.h"
#include "compress/method/method.h"
#include "compress/method/work.h"
#include "compress/refit/free_map.h"
#include "compress/refit/norm_gain.h"
#include "compress/refit/refit_rows.h"
#include "linalg/least_squares.h"

namespace refold {

// Options of the methods that solve output maps.
OptionSpec ridge_option(const char* help = "auto: by held-out text; or a number, such as 0.01");
OptionSpec bias_option();
// The option `ridge`: nothing for "auto". Throws Error(usage) on behalf of `method`.
std::optional<double> parse_ridge(const std::string& text, const char* method);

class OutputSolver {
public:
    // `step` must outlive this object, and its calibration must not be null when something is visited. Visits
    // also show the taps `of_original` of the original.
    OutputSolver(const Step& step, std::optional<double> ridge, std::vector<Tap> of_original = {})
        : step_(step), ridge_(ridge), of_original_(std::move(of_original)) {}

    // Runs `layer` of the original and of the present model over the calibration text with the taps of the
    // present model that `see` needs.
    void visit(const Model& model, size_t layer, const std::vector<Tap>& taps,
               const std::function<void(const AlignedStreams::Rows&)>& see, AlignedStreams::Extent extent);
    // The same with the taps that the equations of a module's output map need. The stream after the module is
    // to be the original's where the present model's next module reads it. Where modules between are left
    // out, that is further on (Rows::goal), as in ReplaceMe (Shopkhoev et al. 2025).
    void visit_output(const Model& model, size_t layer, const OutputMap& module, std::vector<Tap> taps,
                      const std::function<void(const AlignedStreams::Rows&)>& see);

    // Modules of the original are left out between this one and the next one of the model.
    bool leads_over_a_gap(const Model& model, size_t layer, const OutputMap& module) const;

    // The least-squares problem of a map, and its present weights.
    struct Equations {
        LeastSquares fit, held_out;
        std::vector<float> prior;  // [outputs x inputs], a bias as the last input

        // Of these inputs alone (ascending).
        Equations with_inputs(std::span<const int64_t> some) const;
    };
    Equations equations(const Model& model, size_t layer, const OutputMap& module, const FreeMap& map,
                        bool bias);

    struct Solution {
        Ridged map;                // [outputs x inputs], a bias as the last input
        std::vector<float> prior;  // the map as it was
        LeastSquares all;          // the rows of all texts
        LeastSquares held_out;
    };
    // The free part of a module's map by least squares. The ridge is the given one, or the best on held-out
    // rows, searched from the one that the same slot had in the layer before.
    Solution solve(Slot slot, const Equations& equations) const;
    Solution solve(const Model& model, size_t layer, const OutputMap& module, const FreeMap& map, bool bias);
    // The type of a solved map of `inputs` inputs, given the option `type`. "same": the type of the map's
    // tensors, so that a quantized model does not grow, where rows are whole blocks of it.
    static DType solved_type(const Model& model, const FreeMap& map, const std::string& option,
                             int64_t inputs);
    // The solution with its weights rounded to `type`, with feedback, to be kept: "weights" (float32 for
    // float types, else packed), "bias" where one was solved, and "figures": ridge, error on held-out rows
    // before and after. Where the map as it was loses less when it is rounded, as for weights that are on the
    // type's grid already, it stays.
    static Arrays rounded(Solution solution, const FreeMap& map, DType type, bool bias);
    // The gain of the norm after a module's map, with the present map.
    RidgedGain solve_gain(const Model& model, size_t layer, const OutputMap& module);
    // The search for the slot's next ridge starts here.
    void set_ridge(Slot slot, double ridge);

    // Layers up to this one have their final form.
    void done(size_t layer) { pending_ = layer + 1; }

private:
    AlignedStreams& streams(const Model& model);

    const Step& step_;
    std::optional<double> ridge_;
    std::vector<Tap> of_original_;
    std::optional<AlignedStreams> streams_;
    size_t pending_ = 0;   // layers in their final form
    size_t advanced_ = 0;  // layers that the streams have passed
    std::map<Slot, double> ridges_;
};

// True when a module's bias can be solved together with its map: the layer has one, or the family does.
bool has_bias(const Model& model, size_t layer, const OutputMap& module);
// Gives a layer a vector (a bias, a gain) of its own under the family's name for it, or another name where
// other layers read a tensor of that name.
void install_vector(Model& model, size_t layer, Slot slot, const Tensor& vector);

}  // namespace refold
