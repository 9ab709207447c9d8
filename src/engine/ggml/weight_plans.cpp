#include "engine/ggml/weight_plans.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "engine/devices.h"
#include "engine/ggml/factor_terms.h"
#include "engine/ggml/tensor_placement.h"
#include "model/execution.h"
#include "model/materialize.h"
#include "model/row_parts.h"

namespace refold {
namespace {

class WeightPlanner {
public:
    // Fills `planned`, whose context is there.
    WeightPlanner(const Model& model, const EngineOptions& options, PlannedWeights& planned)
        : model_(model),
          options_(options),
          planned_(planned),
          plans_(planned.plans),
          placement_(model, plans_.context.get(), options) {}

    void plan() {
        for (size_t p = 0; p < model_.topology.layers.size(); ++p) plan_layer(p, model_.topology.layers[p]);
        plan_layer(kWholeModel, model_.topology.globals);
        if (model_.config.norm_head) plan_output_norms();
        mark_partial_use();
        plans_.storages = placement_.take_storages();
    }

private:
    // Rows, or columns, [first, first + count) of a stored tensor.
    struct TensorRun {
        std::string tensor;
        int64_t first, count;
    };
    using Runs = std::vector<TensorRun>;

    const Slots& slots_at(size_t layer) const;
    Runs runs_of(const Expression& expression, Slot slot, size_t layer) const;
    Tensor materialized(const Expression& expression, Slot slot) const;
    void plan_layer(size_t layer, const Slots& slots);
    void plan_group(size_t layer, std::span<const Slot> slots);
    void plan_factored(size_t layer, std::span<const Slot> slots);
    void plan_experts(size_t layer, std::span<const Slot> slots);
    void plan_table(Slot slot, const Expression& expression);
    LinearPlan plan_row_parts(const RowParts& parts, SlotShape shape);
    void plan_output_norms();
    void place_runs(std::span<const Runs> slots, bool fuse);
    // Neighboring slots of one type share a plan, e.g. Q and K where V has a larger type. Slots without runs
    // get none.
    std::vector<FactoredPlan::Stored> plan_stored(size_t layer, std::span<const Slot> slots,
                                                  std::span<const Runs> runs) const;
    LinearPlan make_plan(size_t layer, std::span<const Slot> slots, std::span<const Runs> runs) const;
    ggml_tensor* add_vector(std::vector<float> values, const std::string& name);
    ggml_tensor* concatenated_bias(size_t layer, std::span<const Slot> slots);
    void mark_partial_use();

    const Model& model_;
    const EngineOptions& options_;
    PlannedWeights& planned_;
    WeightPlans& plans_;  // of planned_
    TensorPlacement placement_;
};

const Slots& WeightPlanner::slots_at(size_t layer) const {
    return layer == kWholeModel ? model_.topology.globals : model_.topology.layers[layer];
}

WeightPlanner::Runs WeightPlanner::runs_of(const Expression& expression, Slot slot, size_t layer) const {
    if (const auto* dense = std::get_if<Dense>(&expression)) {
        const SlotShape shape = slot_shape(slot, model_.config, layer);
        return {{dense->tensor, 0, heads_are_columns(slot) ? shape.in : shape.out}};
    }
    Runs runs;
    const int64_t size = block_size(slot, model_.config);
    if (const auto* heads = std::get_if<Heads>(&expression)) {
        for (const auto& run : heads->runs) runs.push_back({run.tensor, run.first * size, run.count * size});
    }
    return runs;
}

// The weight of an expression as if it were a stored tensor.
Tensor WeightPlanner::materialized(const Expression& expression, Slot slot) const {
    const SlotShape shape = slot_shape(slot, model_.config);
    Tensor tensor{DType::F32, {shape.in, shape.out}, {}, {}};
    tensor.produce = [=, this] {
        return quantize(DType::F32, materialize(model_, expression, slot), shape.in);
    };
    return tensor;
}

void WeightPlanner::plan_layer(size_t layer, const Slots& slots) {
    const auto present = [&](Slot slot) { return slots.contains(slot); };
    for (const Slot first : kProductGroups) {
        // What layers add for exits is read by LoopWeights.
        if (properties(first).module == SlotModule::exit && layer != kWholeModel) continue;
        const std::span<const Slot> group = product_group(first);
        if (std::all_of(group.begin(), group.end(), present)) {
            plan_group(layer, group);
            continue;
        }
        // Where another layer's attention replaces some of them, or an FFN has no gate.
        for (size_t i = 0; i < group.size(); ++i) {
            if (present(group[i])) plan_group(layer, group.subspan(i, 1));
        }
    }
    std::set<Slot> matrix_biases;
    for (const auto& [slot, expression] : slots) {
        plans_.slots.emplace(layer, slot);
        if (is_matrix(slot) && bias_of(slot)) matrix_biases.insert(*bias_of(slot));
    }
    for (const auto& [slot, expression] : slots) {
        if (is_table(slot)) {
            plan_table(slot, expression);
        } else if (is_vector(slot) && !matrix_biases.contains(slot)) {
            plans_.vectors[{layer, slot}] =
                add_vector(materialize(model_, expression, slot, layer), std::get<Dense>(expression).tensor);
        }
    }
}

void WeightPlanner::plan_table(Slot slot, const Expression& expression) {
    WeightPlans::Table& table = plans_.tables[slot];
    const auto* parts = std::get_if<RowParts>(&expression);
    for (const std::string& name :
         parts != nullptr ? parts->parts : std::vector{std::get<Dense>(expression).tensor}) {
        placement_.place({name}, false);
        table.parts.push_back(placement_.rows_of(name).storage);
    }
    if (parts == nullptr) return;
    table.places = places_of_rows(model_, *parts);
}

LinearPlan WeightPlanner::plan_row_parts(const RowParts& parts, SlotShape shape) {
    LinearPlan plan;
    plan.kind = LinearPlan::Kind::parts;
    plan.in = shape.in;
    plan.out = shape.out;
    plan.slot_rows = {shape.out};
    plan.row_ids = ids_in_order(model_, parts);
    for (const std::string& name : parts.parts) {
        placement_.place({name}, false);
        plan.runs.push_back(placement_.rows_of(name));
    }
    return plan;
}

void WeightPlanner::plan_output_norms() {
    const Expression& output = model_.topology.globals.at(Slot::output);
    const auto* stored = std::get_if<Dense>(&output);
    plans_.inverse_output_norms =
        add_vector(stored != nullptr ? inverse_row_norms(model_.tensor(stored->tensor))
                                     : inverse_row_norms(materialized(output, Slot::output)),
                   "output norms");
}

void WeightPlanner::place_runs(std::span<const Runs> slots, bool fuse) {
    std::vector<std::string> tensors;
    for (const Runs& runs : slots) {
        for (const TensorRun& run : runs) tensors.push_back(run.tensor);
    }
    placement_.place(tensors, fuse);
}

LinearPlan WeightPlanner::make_plan(size_t layer, std::span<const Slot> slots,
                                    std::span<const Runs> runs) const {
    LinearPlan plan;
    plan.columns = heads_are_columns(slots[0]);
    for (size_t s = 0; s < slots.size(); ++s) {
        const SlotShape shape = slot_shape(slots[s], model_.config, layer);
        plan.in = shape.in;
        plan.out += shape.out;
        plan.slot_rows.push_back(shape.out);
        for (const auto& run : runs[s]) {
            const Run rows = placement_.rows_of(run.tensor);
            const int64_t first = plan.columns ? run.first : rows.first + run.first;
            if (!plan.runs.empty() && plan.runs.back().storage == rows.storage &&
                plan.runs.back().first + plan.runs.back().count == first) {
                plan.runs.back().count += run.count;
            } else {
                plan.runs.push_back({rows.storage, first, run.count});
            }
        }
    }
    const auto folded = [](const Run& run) { return run.storage->fold > 1; };
    const Run& first = plan.runs.front();
    const int64_t whole = plan.columns ? first.storage->in() : first.storage->rows();
    if (plan.runs.size() == 1 && first.count == whole) {
        plan.kind = LinearPlan::Kind::whole;
    } else if (options_.shared == SharedExecution::automatic &&
               std::none_of(plan.runs.begin(), plan.runs.end(), folded)) {
        plan.kind = LinearPlan::Kind::runs;
    } else {
        plan.kind = LinearPlan::Kind::composed;
    }
    return plan;
}

std::vector<FactoredPlan::Stored> WeightPlanner::plan_stored(size_t layer, std::span<const Slot> slots,
                                                             std::span<const Runs> runs) const {
    std::vector<FactoredPlan::Stored> plans;
    const auto type_of = [&](const TensorRun& run) {
        return placement_.rows_of(run.tensor).storage->tensor->type;
    };
    const auto joins = [&](size_t from, size_t next) {
        return !runs[next].empty() && std::all_of(runs[next].begin(), runs[next].end(), [&](const auto& run) {
            return type_of(run) == type_of(runs[from].front());
        });
    };
    for (size_t from = 0, count = 1; from < slots.size(); from += count) {
        count = 1;
        if (runs[from].empty()) continue;
        const bool one_type = joins(from, from);
        while (one_type && from + count < slots.size() && joins(from, from + count)) ++count;
        plans.push_back({from, make_plan(layer, slots.subspan(from, count), runs.subspan(from, count))});
    }
    return plans;
}

void WeightPlanner::plan_group(size_t layer, std::span<const Slot> slots) {
    const Slots& topology = slots_at(layer);
    if (consists_of_experts(slots[0])) return plan_experts(layer, slots);
    const auto factored = [&](Slot slot) { return has_factors(topology.at(slot)); };
    if (std::any_of(slots.begin(), slots.end(), factored)) return plan_factored(layer, slots);
    if (const auto* parts = std::get_if<RowParts>(&topology.at(slots[0]))) {
        LinearPlan plan = plan_row_parts(*parts, slot_shape(slots[0], model_.config));
        plan.bias = concatenated_bias(layer, slots);
        plans_.linear[{layer, slots[0]}].push_back(std::move(plan));
        return;
    }
    std::vector<Runs> runs;
    for (const Slot slot : slots) runs.push_back(runs_of(topology.at(slot), slot, layer));
    // Rounded scores would choose other experts.
    if (slots[0] == Slot::ffn_router) placement_.keep_f32(runs.front().front().tensor);
    // CUDA's module multiplies by gate and up in one operation where each is a tensor.
    place_runs(runs, !heads_are_columns(slots[0]) && (options_.device == kCpu || slots[0] == Slot::attn_q));
    auto& plans = plans_.linear[{layer, slots[0]}];
    for (auto& [first, plan] : plan_stored(layer, slots, runs)) {
        plan.bias = concatenated_bias(layer, slots.subspan(first, plan.slot_rows.size()));
        plans.push_back(std::move(plan));
    }
}

void WeightPlanner::plan_factored(size_t layer, std::span<const Slot> slots) {
    const Slots& topology = slots_at(layer);
    std::vector<Expression> expressions;
    std::vector<Runs> runs;
    for (const Slot slot : slots) {
        expressions.push_back(topology.at(slot));
        runs.push_back(runs_of(base_of(expressions.back()), slot, layer));
    }
    place_runs(runs, !heads_are_columns(slots[0]));
    place_factors(placement_, expressions);
    FactoredPlan plan;
    for (size_t s = 0; s < slots.size(); ++s) {
        const SlotShape shape = slot_shape(slots[s], model_.config, layer);
        plan.in = shape.in;
        plan.last.append(shape.out);
        add_factor_terms(plan, placement_, expressions[s], shape);
    }
    plan.stored = plan_stored(layer, slots, runs);
    plan.bias = concatenated_bias(layer, slots);
    plans_.factored[{layer, slots[0]}] = std::move(plan);
}

void WeightPlanner::plan_experts(size_t layer, std::span<const Slot> slots) {
    const Slots& topology = slots_at(layer);
    const int64_t experts = model_.config.n_expert_of(layer);
    ExpertPlan plan;
    for (const Slot slot : slots) {
        const SlotShape shape = slot_shape(slot, model_.config, layer);
        ExpertPlan::Weights weights{
            {}, block_size(slot, model_.config), concatenated_bias(layer, {&slot, 1})};
        const std::array all = {runs_of(topology.at(slot), slot, layer)};
        place_runs(all, false);
        for (const TensorRun& run : all[0]) {
            Storage* storage = placement_.rows_of(run.tensor).storage;
            storage->used_by_experts = true;
            for (int64_t first = run.first; first < run.first + run.count; first += weights.rows)
                weights.experts.push_back({storage, first, weights.rows});
        }
        plan.in = shape.in;
        plan.out += weights.rows;
        plan.slots.push_back(std::move(weights));
    }
    if (static_cast<int64_t>(plan.slots.front().experts.size()) != experts)
        fail(ErrorCode::internal, "engine", "layer {}: {} experts, expected {}", layer,
             plan.slots.front().experts.size(), experts);
    plans_.experts[{layer, slots[0]}] = std::move(plan);
}

void WeightPlanner::mark_partial_use() {
    plans_.for_each_linear([&](LinearPlan& plan) {
        if (plan.kind == LinearPlan::Kind::whole || plan.kind == LinearPlan::Kind::parts) return;
        for (auto& run : plan.runs) {
            run.storage->used_in_runs = true;
            run.storage->needs_plain |= plan.columns && plan.kind == LinearPlan::Kind::composed &&
                                        options_.shared == SharedExecution::composed;
        }
    });
    for (auto& [key, plan] : plans_.factored) plan.mark_storage_use();
}

ggml_tensor* WeightPlanner::add_vector(std::vector<float> values, const std::string& name) {
    PlannedVector& vector = planned_.vectors[name];
    if (vector.tensor == nullptr) {
        vector.tensor =
            ggml_new_tensor_1d(plans_.context.get(), GGML_TYPE_F32, static_cast<int64_t>(values.size()));
        vector.values = std::move(values);
    }
    return vector.tensor;
}

ggml_tensor* WeightPlanner::concatenated_bias(size_t layer, std::span<const Slot> slots) {
    const Slots& topology = slots_at(layer);
    const auto has_bias = [&](Slot slot) { return bias_of(slot) && topology.contains(*bias_of(slot)); };
    if (std::none_of(slots.begin(), slots.end(), has_bias)) return nullptr;
    std::vector<float> data;
    std::string name = "bias";  // equal for layers with the same biases, which share one vector
    for (const Slot slot : slots) {
        const auto rows = static_cast<size_t>(slot_shape(slot, model_.config, layer).out);
        if (!has_bias(slot)) {
            name += fmt::format("/{}", rows);
            data.resize(data.size() + rows, 0.0F);
            continue;
        }
        const Expression& bias = topology.at(*bias_of(slot));
        name += "/" + std::get<Dense>(bias).tensor;
        const auto values = materialize(model_, bias, *bias_of(slot), layer);
        data.insert(data.end(), values.begin(), values.end());
    }
    return add_vector(std::move(data), name);
}

}  // namespace

PlannedWeights plan_weights(const Model& model, const EngineOptions& options) {
    PlannedWeights planned;
    // An upper bound on the number of tensor descriptions: storages and vectors.
    planned.plans.context = make_context(4 * model.tensors.size() + 64 * model.topology.layers.size() + 64);
    WeightPlanner(model, options, planned).plan();
    return planned;
}

}  // namespace refold
