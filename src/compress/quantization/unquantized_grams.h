// Gram matrices of the inputs that matrices have in a model before anything of it is quantized.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "calibrate/calibration.h"
#include "calibrate/residual_stream.h"
#include "compress/method/work.h"
#include "model/tap.h"

namespace refold {

// What is measured on, and where it is kept.
struct Measurement {
    Work& work;
    const Calibration& calibration;
    std::string identity;  // a hash of the model and the calibration text
    int threads = 0;
};

// Kept in the work folder, one file for each layer, so that memory holds one at a time. The sums are over the
// sequences of all processes of group().
class UnquantizedGrams {
public:
    // The inputs of the head have layer kWholeModel and Tap::layer_input.
    using Place = std::pair<size_t, Tap>;
    // Runs the model over the calibration text where `places` are not in the work folder yet. `model` and
    // what `on` refers to must outlive this object.
    UnquantizedGrams(const Model& model, const Measurement& on, const std::set<Place>& places);

    // [inputs x inputs]
    std::vector<double> at(Place place) const;

private:
    Arrays measure(const Model& model, const Measurement& on, size_t layer, const std::vector<Tap>& taps);

    std::optional<ResidualStream> stream_;
    std::map<Place, Tensor> grams_;
};

}  // namespace refold
