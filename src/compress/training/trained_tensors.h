// The tensors of a model that a step trains.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "compress/training/trained_types.h"
#include "train/train.h"

namespace refold {

class TrainedTensors {
public:
    // `selection` as of trained_tensors(), which throws for it; `type` as of TrainedTypes.
    TrainedTensors(const Model& model, const std::string& selection, const std::string& type);

    size_t count() const { return names_.size(); }
    uint64_t parameters() const;
    // Those that were quantized and are not any more.
    std::vector<std::string> widened() const;
    // The model with these values in the tensors' final types. Tensors without values have shapes alone, for
    // a dry run.
    Model with(TensorValues values) const;

private:
    const Model& model_;
    std::set<std::string> names_;
    TrainedTypes type_of_;
};

}  // namespace refold
