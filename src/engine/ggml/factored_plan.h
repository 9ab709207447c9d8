// How a group of slots of one input is multiplied when some of them are made of factors.
#pragma once

#include <map>
#include <vector>

#include "engine/ggml/factors.h"

namespace refold {

// For few tokens three nodes at most, one without Tucker factors of two: each takes its sources from the
// ones before. For many tokens the same terms are read as products of ggml's own (composed.h).
struct FactoredPlan {
    // Sources of terms.
    static constexpr int kInput = 0, kFirst = 1, kCore = 2, kGiven = 3;

    // V x, A x, U1^T x: of the input, common to all slots that name the same factor; and whole stored weights
    factors::Product first;
    factors::Product core;  // the Tucker cores' products
    factors::Product last;  // one segment per slot; terms of source kInput are those of stored weights

    // Slots of which stored weights are a part: all of it, or the base of a LoRA.
    struct Stored {
        size_t slot;  // the first one
        LinearPlan plan;
    };
    std::vector<Stored> stored;
    std::vector<size_t> given;  // those in layouts that only ggml knows: sources kGiven and following

    // Terms that combine or spread heads, each as a product of its own: cheap for any number of tokens.
    std::map<const factors::Term*, factors::Product> heads;

    int64_t in = 0;
    ggml_tensor* bias = nullptr;   // of all slots
    int64_t reconstruct_from = 0;  // tokens of a step from which the dense weights are made first; 0: never

    // Where the same term exists already its rows, else new ones; returns the first.
    static int64_t append_once(factors::Product& product, const factors::Term& term, int64_t rows,
                               const Run& scale = {});
    // Tells the storages how their rows are read.
    void mark_use();
    // After layouts were chosen: adds the stored weights' terms to the last product. The plan stays where it
    // is from then on.
    void finish();

private:
    void add_heads(const factors::Term& term, int64_t rows);
};

}  // namespace refold
