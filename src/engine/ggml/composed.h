// A FactoredPlan as one node for each of its terms and sums: for many tokens, and as ggml products for
// comparison.
#pragma once

#include <vector>

#include "engine/ggml/factored_plan.h"
#include "engine/ggml/panel_product.h"

namespace refold {

class Composer {
public:
    // With `own`, by our operations, with the results that the plan has for few tokens; null: by ggml's.
    Composer(ggml_context* context, const FactoredPlan& plan, ggml_tensor* x, PanelProduct* own);

    // Slot `slot` times x: [out, tokens], without bias. `stored`: the product of its stored weight, which may
    // become the result; null: it has none.
    ggml_tensor* product(size_t slot, ggml_tensor* stored);

private:
    // The result of a segment, by the segment's first row.
    struct SegmentResult {
        int64_t first;
        ggml_tensor* rows;
    };
    std::vector<SegmentResult> results_of(const factors::Product& product);
    ggml_tensor* source(const factors::Term& term) const;
    // `term` may be a changed copy of `key`, which is the term in the plan.
    ggml_tensor* apply(const factors::Term& term, const factors::Term& key);
    ggml_tensor* combine(const factors::Combination& c, ggml_tensor* x);
    ggml_tensor* spread(const factors::Combination& c, ggml_tensor* x);

    ggml_tensor* multiply(const Run& run, ggml_tensor* x);
    ggml_tensor* rows(const Run& run);
    // A transposed copy; quantized rows become F32.
    ggml_tensor* transposed(ggml_tensor* matrix);
    // U2 [head width, R2] in the order of the rotary pairs.
    ggml_tensor* head_rows(const factors::Combination& c);
    // The role's column of U3, repeated for each head of a group and divided by their number: [R3 * group].
    ggml_tensor* role_weights(const factors::Combination& c);

    ggml_context* context_;
    const FactoredPlan& plan_;
    ggml_tensor* x_;
    PanelProduct* own_;  // may be null
    std::vector<SegmentResult> first_, core_;
    bool computed_ = false;
};

}  // namespace refold
