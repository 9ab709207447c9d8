// The plan for a group of slots with one input, some of which are factored.
#pragma once

#include <map>
#include <vector>

#include "engine/ggml/factors.h"

namespace refold {

// For few tokens it is up to three nodes (two without Tucker factors), each of which takes its sources from
// the ones before. For many tokens the same terms are nodes of their own (composed.h), with the same results.
struct FactoredPlan {
    // Sources of terms.
    static constexpr int kInput = 0, kFirst = 1, kCore = 2, kSeparate = 3;
    // Up to so many tokens three nodes are faster.
    static constexpr int64_t kFewTokens = 4;

    // Of the input: V x, A x, U1^T x, once for all slots that name the same factor, and whole stored weights.
    factors::Product first;
    factors::Product core;  // Tucker cores times `first`
    factors::Product last;  // one segment per slot; its first term is that of a stored weight (identity)

    // Slots with stored weights: without factors, or the base of a LoRA.
    struct Stored {
        size_t slot;  // the first slot of the plan
        LinearPlan plan;
    };
    std::vector<Stored> stored;
    // Indices of `stored` that are nodes of their own, sources kSeparate and following of `last`: all but
    // panels of one storage.
    std::vector<size_t> separate;

    // Every term as a product of its own that is not one of panels.
    std::map<const factors::Term*, factors::Product> term_products;
    // For many tokens, by slot: what its factors add to the product of its stored weight (factors::add), by
    // terms whose sources are numbered. Only of panels: this saves several nodes and sums.
    std::map<size_t, factors::Product> sums;

    int64_t in = 0;
    ggml_tensor* bias = nullptr;  // [out] of all slots; null: none

    // Whether a term of `last` belongs to factors, not to a stored weight.
    static bool is_of_factors(const factors::Term& term) {
        return term.kind != factors::Term::Kind::identity;
    }
    // Appends `rows` rows for a term unless the product has the same term already. Returns their first row.
    static int64_t append_once(factors::Product& product, const factors::Term& term, int64_t rows,
                               const Run& scale = {});
    // Calls function(segment) for all that the three nodes compute.
    template <class Function>
    void for_each_segment(Function&& function) const {
        for (const factors::Product* product : {&first, &core, &last}) {
            for (const factors::Segment& segment : product->segments) function(segment);
        }
    }
    // Marks in the storages how they are read, before layouts are chosen.
    void mark_storage_use();
    // Adds the terms of stored weights, after layouts were chosen. The plan must not move afterwards.
    void finish();

private:
    void add_term_product(const factors::Term& term, int64_t rows);
    void add_sum(size_t slot);
};

}  // namespace refold
