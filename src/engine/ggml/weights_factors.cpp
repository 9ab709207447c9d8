// Where the factors of weights lie, and what a group of slots multiplies with them.
#include <algorithm>

#include "engine/ggml/weights.h"

namespace refold {

using factors::Combination;
using factors::Term;

Run Weights::whole(const std::string& tensor) const {
    const Placement& place = placed_.at(tensor);
    return {place.storage, place.row, model_->tensor(tensor).rows()};
}

// Factors that one input is multiplied with lie below each other; the others by themselves.
void Weights::place_factors(std::span<const Expression> expressions) {
    std::vector<std::vector<TensorRun>> stacked;
    std::vector<std::string> single;
    const auto visit = [&](const auto& e) {
        if constexpr (std::is_same_v<std::decay_t<decltype(e)>, LowRank>) {
            single.insert(single.end(), {e.u, e.v});
            if (!e.scale.empty()) single.push_back(e.scale);
            if (!e.transposed) stacked.push_back({{e.v, 0, 0}});
        } else if constexpr (std::is_same_v<std::decay_t<decltype(e)>, Tucker>) {
            single.insert(single.end(), {e.core, e.model, e.head, e.roles});
        }
    };
    for (const Expression& expression : expressions) {
        std::visit(visit, expression);
        if (const auto* plus = std::get_if<Plus>(&expression)) {
            std::visit(visit, plus->base);
            visit(plus->term);
        }
    }
    place_tensors(stacked, true);
    for (const auto& name : single) place_tensors({{TensorRun{name, 0, 0}}}, false);
}

void Weights::add_low_rank(FactoredPlan& plan, const LowRank& e, SlotShape shape) const {
    const Run u = whole(e.u), v = whole(e.v);
    const int64_t rank = u.storage->in();
    Run scale;
    if (!e.scale.empty()) {
        scale = whole(e.scale);
        scale = {scale.storage, scale.first + e.row, 1};
    }
    Term into{e.transposed ? Term::Kind::transposed : Term::Kind::rows, FactoredPlan::kInput};
    into.run = e.transposed ? u : v;
    into.columns = e.transposed ? rank : shape.in;
    Term out{into.kind, FactoredPlan::kFirst, FactoredPlan::append_once(plan.first, into, rank, scale)};
    out.run = e.transposed ? v : u;
    out.columns = e.transposed ? shape.out : rank;
    plan.last.segments.back().terms.push_back(out);
}

void Weights::add_tucker(FactoredPlan& plan, const Tucker& e, SlotShape shape) const {
    const Run core = whole(e.core), model = whole(e.model), head = whole(e.head);
    const int64_t r1 = core.storage->in(), features = model.storage->in(),
                  heads = (e.transposed ? shape.in : shape.out) / head.storage->in();
    Combination combination{head, whole(e.roles), e.role, heads, 1, e.halves};
    combination.group = core.count / combination.core_rows();
    Term ends{e.transposed ? Term::Kind::spread : Term::Kind::combine};
    ends.combination = combination;
    Term wide{e.transposed ? Term::Kind::transposed : Term::Kind::rows};
    wide.run = model;
    wide.columns = features;
    Term middle{wide.kind, FactoredPlan::kFirst};
    middle.run = core;
    middle.columns = r1;

    Term& into = e.transposed ? ends : wide;
    Term& out = e.transposed ? wide : ends;
    middle.offset = FactoredPlan::append_once(plan.first, into, e.transposed ? core.count : r1);
    out.offset = FactoredPlan::append_once(plan.core, middle, e.transposed ? r1 : core.count);
    out.source = FactoredPlan::kCore;
    plan.last.segments.back().terms.push_back(out);
}

void Weights::add_expression(FactoredPlan& plan, const Expression& expression, SlotShape shape) const {
    if (const auto* low_rank = std::get_if<LowRank>(&expression)) add_low_rank(plan, *low_rank, shape);
    if (const auto* tucker = std::get_if<Tucker>(&expression)) add_tucker(plan, *tucker, shape);
    if (const auto* plus = std::get_if<Plus>(&expression)) {
        add_expression(plan, base_of(expression), shape);
        add_low_rank(plan, plus->term, shape);
    }
}

void Weights::plan_factored(size_t position, std::span<const Slot> slots) {
    const Slots& topology = slots_at(position);
    std::vector<Expression> expressions;
    std::vector<std::vector<TensorRun>> runs;
    for (const Slot slot : slots) {
        expressions.push_back(topology.at(slot));
        runs.push_back(runs_of(base_of(expressions.back()), slot, position));
    }
    place_tensors(runs, !heads_are_columns(slots[0]));
    place_factors(expressions);
    FactoredPlan plan;
    for (size_t s = 0; s < slots.size(); ++s) {
        const SlotShape shape = slot_shape(slots[s], model_->config, position);
        plan.in = shape.in;
        plan.last.append(shape.out);
        add_expression(plan, expressions[s], shape);
    }
    plan.stored = plan_stored(position, slots, runs);
    plan.bias = concatenated_bias(position, slots);
    if (factored_execution_ == FactoredExecution::automatic)
        plan.reconstruct_from = chooser_->choose(position, slots, 1).from_tokens;
    factored_[{position, slots[0]}] = std::move(plan);
}

}  // namespace refold
