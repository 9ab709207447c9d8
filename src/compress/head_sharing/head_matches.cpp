#include "compress/head_sharing/head_matches.h"

#include <set>

#include "core/text.h"

namespace refold {
namespace {

MatrixOfEach rows_of(const Model& model, const HeadUnits& units, Slot slot) {
    const int64_t head_dim = model.config.head_dim;
    MatrixOfEach rows;
    for (const Unit& unit : units.stored()) {
        auto& blocks = rows.emplace_back();
        for (const HeadRef& head : units.heads_of(unit, slot))
            blocks.push_back({head.tensor, head.head * head_dim, head_dim});
    }
    return rows;
}

}  // namespace

std::vector<Slot> union_of(const std::vector<Slot>& a, const std::vector<Slot>& b) {
    std::set<Slot> slots(a.begin(), a.end());
    slots.insert(b.begin(), b.end());
    return {slots.begin(), slots.end()};
}

std::vector<Match> best_head_matches(const Model& model, const HeadUnits& units, const std::vector<Slot>& on,
                                     const std::vector<bool>& replaceable, const MatchMemory& memory) {
    std::vector<MatrixOfEach> matrices;
    for (const Slot slot : on) matrices.push_back(rows_of(model, units, slot));
    const auto gram =
        gram_matrix(model, matrices, "matching " + format_count(units.stored().size()) + " heads", memory);
    return best_matches(model, units.stored(), gram, replaceable);
}

std::vector<Match> best_head_matches(const Model& model, const std::vector<Slot>& on,
                                     const std::vector<Slot>& shared, const MatchMemory& memory) {
    const HeadUnits units(model, union_of(on, shared), shared);
    return best_head_matches(model, units, on, std::vector<bool>(units.stored().size(), true), memory);
}

}  // namespace refold
