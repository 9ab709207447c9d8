// A model's weights in memory, each stored tensor once, as the graphs read them. They are planned
// (weight_plans.h) and loaded (weight_loader.h) once and do not change afterwards.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/ggml/weight_loader.h"
#include "engine/ggml/weight_plans.h"

namespace refold {

// Ranks are filled up with zeros to a multiple of this, an AVX-512 vector of floats: ggml processes the end
// of other rows element by element.
constexpr int64_t kRankUnit = 16;

class DeviceRun;

class Weights {
public:
    // Multiplies out the factors that options.factored names and fills up the ranks of the others. Keeps
    // nothing of the model. Throws Error(io) when there is not enough memory.
    // `device`: null for refold's kernels on the CPU; else weights lie plain in its memory, for ggml's
    // operations.
    Weights(const Model& model, const EngineOptions& options, const DeviceRun* device = nullptr);

    // Plans that together cover `slots` in order, e.g. one for {q, k, v}, or three when their types differ.
    // Only for groups without factors.
    const std::vector<LinearPlan>& linear(size_t layer, std::span<const Slot> slots) const;
    // The plan of a group with factored slots; null for other groups.
    const FactoredPlan* factored(size_t layer, std::span<const Slot> slots) const;
    // Of a group whose matrices consist of experts.
    const ExpertPlan& experts(size_t layer, std::span<const Slot> slots) const {
        return plans_.experts.at({layer, slots[0]});
    }
    bool has_factors() const { return !plans_.factored.empty(); }
    // False with SharedExecution::composed.
    bool own_operations() const { return shared_ == SharedExecution::automatic; }
    bool has(size_t layer, Slot slot) const;
    // A norm weight, bias or other vector [n]; null where the topology has none.
    ggml_tensor* vector(size_t layer, Slot slot) const;
    // 1 / L2 norm of each row of the output matrix [n_vocab]; null without ModelConfig::norm_head.
    ggml_tensor* inverse_output_norms() const { return plans_.inverse_output_norms; }
    // Dequantizes a row of a table.
    void table_row(Slot table, int32_t row, std::span<float> out) const;

    // Bytes of all weights that only this holds.
    uint64_t bytes() const { return memory_.bytes; }
    // Of those that EngineOptions::resident holds.
    uint64_t shared_bytes() const { return memory_.shared_bytes; }
    // What other engines can read.
    std::shared_ptr<const ResidentWeights> resident() const { return memory_.resident; }

private:
    SharedExecution shared_;
    WeightPlans plans_;
    WeightMemory memory_;  // of the tensors in plans_
};

}  // namespace refold
