// The terms of a FactoredPlan as products of ggml's own: for many tokens, and as the reference of the own
// operation in factors.h.
#pragma once

#include <vector>

#include "engine/ggml/factored_plan.h"
#include "engine/ggml/q8_product.h"

namespace refold {

class Composer {
public:
    // With `own`, heads are combined and spread, and Q8_0 multiplied, by our operations instead of ggml's.
    Composer(ggml_context* context, const FactoredPlan& plan, ggml_tensor* x, Q8Product* own);

    // Slot `slot` of the plan times x [out, tokens], without what it takes from stored weights and the bias;
    // null when that is all there is.
    ggml_tensor* product(size_t slot);
    // The slot's dense weight [in, out] in float32; of slots without stored weights.
    ggml_tensor* weight(size_t slot);

private:
    // Results of a product's segments, by their first row.
    struct Piece {
        int64_t first;
        ggml_tensor* rows;
    };
    std::vector<Piece> pieces_of(const factors::Product& product);
    ggml_tensor* source(const factors::Term& term) const;
    // `key`: the term in the plan, where `term` is a copy.
    ggml_tensor* apply(const factors::Term& term, const factors::Term& key);
    ggml_tensor* combine(const factors::Combination& c, ggml_tensor* x);
    ggml_tensor* spread(const factors::Combination& c, ggml_tensor* x);
    ggml_tensor* low_rank_weight(const factors::Term& out);
    ggml_tensor* tucker_weight(const factors::Term& out);

    ggml_tensor* multiply(ggml_tensor* matrix, ggml_tensor* x);
    ggml_tensor* rows(const Run& run);
    ggml_tensor* float_rows(const Run& run);
    // A copy with columns as rows; quantised rows become float32.
    ggml_tensor* transposed(ggml_tensor* matrix);
    // U2 [head width, R2] in the order of the rotation.
    ggml_tensor* head_rows(const factors::Combination& c);
    // U3's column for every head of a group, divided by the group [R3 * group].
    ggml_tensor* role_weights(const factors::Combination& c);

    ggml_context* context_;
    const FactoredPlan& plan_;
    ggml_tensor* x_;
    Q8Product* own_;  // may be null
    std::vector<Piece> first_, core_;
    bool computed_ = false;
};

}  // namespace refold
