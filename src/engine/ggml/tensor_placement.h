// The storages that hold a model's stored tensors, decided before any of them has memory.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/ggml/linear_plan.h"
#include "model/model.h"

namespace refold {

class TensorPlacement {
public:
    // Describes storages in `context`, of the tensors' types unless the options want others. Keeps references
    // to the model and the context.
    TensorPlacement(const Model& model, ggml_context* context, const EngineOptions& options)
        : model_(model), context_(context), f32_(options.f32), bf16_(options.precision == Precision::bf16) {}

    // Gives a storage to each tensor that has none yet. With `fuse`, neighbors among these that agree in type
    // and input size become one storage, in this order.
    void place(const std::vector<std::string>& tensors, bool fuse);
    // A tensor that has no storage yet gets one in float32.
    void keep_f32(const std::string& tensor) { f32_tensors_.insert(tensor); }
    // The rows of a tensor in its storage. Throws std::out_of_range when the tensor has none.
    Run rows_of(const std::string& tensor) const { return rows_.at(tensor); }
    // Hands over the storages, which stay where they are.
    std::vector<std::unique_ptr<Storage>> take_storages() { return std::move(storages_); }

private:
    ggml_type resident_type(const std::string& name) const;

    const Model& model_;
    ggml_context* context_;
    bool f32_, bf16_;  // EngineOptions::f32 and Precision::bf16
    std::vector<std::unique_ptr<Storage>> storages_;
    std::map<std::string, Run> rows_;
    std::set<std::string> f32_tensors_;
};

}  // namespace refold
