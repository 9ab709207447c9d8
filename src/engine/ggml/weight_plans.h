// How a model's weights are to lie in memory, each stored tensor once, and how linear maps read them.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/ggml/expert_product.h"
#include "engine/ggml/factored_plan.h"
#include "engine/ggml/linear_plan.h"

namespace refold {

// Storages, plans and vectors of all layers. Tensors are descriptions until they are loaded
// (weight_loader.h).
struct WeightPlans {
    using LayerSlot = std::pair<size_t, Slot>;

    ggml_context_ptr context;
    std::vector<std::unique_ptr<Storage>> storages;
    // By layer and first slot of a group of slots with one input.
    std::map<LayerSlot, std::vector<LinearPlan>> linear;
    std::map<LayerSlot, FactoredPlan> factored;
    std::map<LayerSlot, ExpertPlan> experts;
    // Norm weights and biases [n]; biases of linear maps are in their plans.
    std::map<LayerSlot, ggml_tensor*> vectors;
    struct Table {
        std::vector<const Storage*> parts;
        std::vector<int32_t>
            places;  // of each row in the parts, one after the other; empty where there is one
    };
    std::map<Slot, Table> tables;                 // read by rows
    std::set<LayerSlot> slots;                    // all that the topology fills
    ggml_tensor* inverse_output_norms = nullptr;  // [n_vocab]; null without ModelConfig::norm_head

    // Calls function(LinearPlan&) for every linear plan, those inside factored ones too.
    template <class Function>
    void for_each_linear(Function&& function) {
        for (auto& [key, plans] : linear) {
            for (auto& plan : plans) function(plan);
        }
        for (auto& [key, plan] : factored) {
            for (auto& stored : plan.stored) function(stored.plan);
        }
    }
};

// An F32 tensor, and its values until it is loaded.
struct PlannedVector {
    ggml_tensor* tensor = nullptr;
    std::vector<float> values;
};

struct PlannedWeights {
    WeightPlans plans;
    std::map<std::string, PlannedVector> vectors;  // by name; equal ones of several layers once
};

// Decides which stored tensors are fused into one storage, and how each group of slots reads its storages.
// Marks in the storages how they are read, which restricts their layouts. load_weights() chooses
// layouts; FactoredPlan::finish() comes after that. The result refers to neither argument.
PlannedWeights plan_weights(const Model& model, const EngineOptions& options);

}  // namespace refold
