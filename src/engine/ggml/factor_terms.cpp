#include "engine/ggml/factor_terms.h"

namespace refold {

using factors::Combination;
using factors::Term;

void place_factors(TensorPlacement& placement, std::span<const Expression> expressions) {
    std::vector<std::string> stacked, single;
    const auto visit = [&](const auto& e) {
        if constexpr (std::is_same_v<std::decay_t<decltype(e)>, LowRank>) {
            single.insert(single.end(), {e.u, e.v});
            if (!e.scale.empty()) single.push_back(e.scale);
            if (!e.transposed) stacked.push_back(e.v);
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
    placement.place(stacked, true);
    placement.place(single, false);
}

static void add_low_rank(FactoredPlan& plan, const TensorPlacement& placement, const LowRank& e,
                         SlotShape shape) {
    const Run u = placement.rows_of(e.u), v = placement.rows_of(e.v);
    const int64_t rank = u.storage->in();
    Run scale;
    if (!e.scale.empty()) {
        scale = placement.rows_of(e.scale);
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

static void add_tucker(FactoredPlan& plan, const TensorPlacement& placement, const Tucker& e,
                       SlotShape shape) {
    const Run core = placement.rows_of(e.core), model = placement.rows_of(e.model),
              head = placement.rows_of(e.head);
    const int64_t r1 = core.storage->in(), features = model.storage->in(),
                  heads = (e.transposed ? shape.in : shape.out) / head.storage->in();
    Combination combination{head, placement.rows_of(e.roles), e.role, heads, 1, e.halves};
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

void add_factor_terms(FactoredPlan& plan, const TensorPlacement& placement, const Expression& expression,
                      SlotShape shape) {
    if (const auto* low_rank = std::get_if<LowRank>(&expression))
        add_low_rank(plan, placement, *low_rank, shape);
    if (const auto* tucker = std::get_if<Tucker>(&expression)) add_tucker(plan, placement, *tucker, shape);
    if (const auto* plus = std::get_if<Plus>(&expression)) {
        add_factor_terms(plan, placement, base_of(expression), shape);
        add_low_rank(plan, placement, plus->term, shape);
    }
}

}  // namespace refold
