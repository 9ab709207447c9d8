// The models that a run of `train` keeps on its way, for what is measured along it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "compress/method/method.h"
#include "compress/training/trained_tensors.h"

namespace refold {

// FOLDER/step-1/kept-03-of-10.gguf: model `number` of `count` that step `step` of a recipe keeps. `folder`:
// Training::metrics.
std::string kept_model_path(const std::string& folder, size_t step, int64_t number, int64_t count);

class KeptModels {
public:
    // Throws Error(usage) when there is no folder for the models that `options` ask for.
    KeptModels(const TrainedTensors& trained, const Step& step, const TrainOptions& options);

    // For TrainRequest::keep. A model's provenance names the recipe up to this step, and the training step.
    bool operator()(int64_t number, TensorValues tensors) const;
    // Reports the first `count` models, by their training steps and files.
    void report(int64_t count, StepReport& report, nlohmann::json& details) const;

private:
    std::string path(int64_t number) const;

    const TrainedTensors& trained_;
    const Step& step_;
    const TrainOptions& options_;
    nlohmann::json provenance_;
};

}  // namespace refold
