// Element types of tensors that were trained.
#pragma once

#include <set>
#include <string>

#include "model/model.h"

namespace refold {

class TrainedTypes {
public:
    // `option`: same (the type before; 16 bits when it was quantized), f32, f16 or bf16. Vectors and small
    // factors are float32 in all files.
    TrainedTypes(const Model& model, std::string option);
    DType operator()(const std::string& tensor) const;

private:
    const Model& model_;
    std::string option_;
    std::set<std::string> float32_;
};

}  // namespace refold
