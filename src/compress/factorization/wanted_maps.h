// The linear maps that layers of a compressed model should have, and the inputs that they meet: what factors
// and corrections approximate.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compress/method/method.h"
#include "compress/quantization/input_uses.h"
#include "compress/refit/output_solver.h"

namespace refold {

// Options of the methods that approximate maps: `stream`.
OptionSpec stream_option();

// Maps that read the same inputs, one below the other.
struct WantedMap {
    std::vector<float> weights;  // [outputs of all slots x inputs], row major
    std::vector<double> gram;    // sum of x x^T over the inputs in the present model [inputs x inputs]
    int64_t inputs = 0;
    double ridge = 0;  // towards the given weights; with both streams
};

class WantedMaps {
public:
    // `step` must outlive this object. With both streams, the maps are solved for what the original does on
    // the inputs that the present model has; else they stay what they are.
    WantedMaps(const Step& step, std::optional<double> ridge, bool both);

    // Of `slots` of a layer, all of which read `tap`; `weights` are their dense matrices. With both streams,
    // maps that end a module are solved for the original's residual stream after it, as by refit, and all
    // others for their outputs on the original's inputs (AA-SVD, arXiv 2604.02119: M = W C R^-T with C = sum
    // of x x'^T, R R^T = sum of x' x'^T, where `weights` is M R^-1). The ridge towards `weights` is the given
    // one, or the best on held-out rows. Layers have to come in order, and taps in the order of the forward
    // pass; `model` has the final form of everything before.
    WantedMap at(const Model& model, size_t layer, Tap tap, const std::vector<Slot>& slots,
                 std::vector<float> weights);

    // The search for the next ridge of maps beginning with this slot starts here.
    void set_ridge(Slot slot, double ridge) { solver_.set_ridge(slot, ridge); }
    // Layers up to this one have their final form.
    void done(size_t layer) { solver_.done(layer); }

private:
    WantedMap of_module(const Model& model, size_t layer, const OutputMap& module,
                        std::vector<float> weights);

    OutputSolver solver_;
    bool both_;
};

// Those of `slots` that the layer has and that read these inputs.
std::vector<Slot> slots_reading(const Model& model, size_t layer, Tap tap, const std::vector<Slot>& slots);

// Throws Error(usage) for slots whose inputs cannot be observed, Error(unsupported) when the model has not
// the original's layers.
void check_observable(const char* method, const Model& model, const Step& step,
                      const std::vector<Slot>& slots);

}  // namespace refold
