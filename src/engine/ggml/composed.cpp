#include "engine/ggml/composed.h"

#include <algorithm>

namespace refold {

using factors::Combination;
using factors::Product;
using factors::Segment;
using factors::Term;

Composer::Composer(ggml_context* context, const FactoredPlan& plan, ggml_tensor* x, PanelProduct* own)
    : context_(context), plan_(plan), x_(x), own_(own) {}

// ---- stored rows ----

ggml_tensor* Composer::rows(const Run& run) {
    ggml_tensor* w = run.storage->tensor;
    if (run.first == 0 && run.count == run.storage->rows()) return w;
    const int64_t fold = run.storage->fold;
    return ggml_view_2d(context_, w, w->ne[0], run.count / fold, w->nb[1],
                        static_cast<size_t>(run.first / fold) * w->nb[1]);
}

ggml_tensor* Composer::transposed(ggml_tensor* matrix) {
    if (ggml_is_quantized(matrix->type)) matrix = ggml_cast(context_, matrix, GGML_TYPE_F32);
    return ggml_cont(context_, ggml_transpose(context_, matrix));
}

ggml_tensor* Composer::head_rows(const Combination& c) {
    ggml_tensor* u2 = rows(c.head);
    if (!c.halves) return u2;
    const int64_t width = c.width();
    ggml_tensor* halves = ggml_reshape_3d(context_, u2, width / 2, 2, c.r2());
    return ggml_reshape_2d(context_, ggml_cont(context_, ggml_permute(context_, halves, 1, 0, 2, 3)), width,
                           c.r2());
}

ggml_tensor* Composer::role_weights(const Combination& c) {
    ggml_tensor* roles = rows(c.roles);
    ggml_tensor* column =
        ggml_view_2d(context_, roles, 1, c.r3(), roles->nb[1], static_cast<size_t>(c.role) * sizeof(float));
    column = ggml_reshape_1d(context_, ggml_cont(context_, column), c.r3());
    if (c.group == 1) return column;
    column = ggml_repeat_4d(context_, column, c.r3(), c.group, 1, 1);
    column = ggml_scale(context_, column, 1.0F / static_cast<float>(c.group));
    return ggml_reshape_1d(context_, column, c.r3() * c.group);
}

// ---- products ----

ggml_tensor* Composer::source(const Term& term) const {
    if (term.source == FactoredPlan::kInput) return x_;
    const auto& results = term.source == FactoredPlan::kFirst ? first_ : core_;
    return std::find_if(results.begin(), results.end(),
                        [&](const SegmentResult& p) { return p.first == term.offset; })
        ->rows;
}

// x [R2 * R3 * group * heads, tokens] -> [width * heads, tokens]
ggml_tensor* Composer::combine(const Combination& c, ggml_tensor* x) {
    const int64_t tokens = x->ne[1], parts = c.r3() * c.group;
    x = ggml_reshape_4d(context_, x, c.r2(), parts, c.heads, tokens);
    x = ggml_cont(context_, ggml_permute(context_, x, 1, 0, 2, 3));
    x = ggml_reshape_2d(context_, x, parts, c.r2() * c.heads * tokens);
    x = ggml_mul_mat(context_, ggml_reshape_2d(context_, role_weights(c), parts, 1), x);
    x = ggml_reshape_2d(context_, x, c.r2(), c.heads * tokens);
    x = ggml_mul_mat(context_, transposed(head_rows(c)), x);
    return ggml_reshape_2d(context_, x, c.width() * c.heads, tokens);
}

// x [width * heads, tokens] -> [R2 * R3 * heads, tokens]
ggml_tensor* Composer::spread(const Combination& c, ggml_tensor* x) {
    const int64_t tokens = x->ne[1];
    x = ggml_reshape_2d(context_, x, c.width(), c.heads * tokens);
    x = ggml_mul_mat(context_, head_rows(c), x);
    x = ggml_reshape_2d(context_, x, 1, c.r2() * c.heads * tokens);
    x = ggml_mul_mat(context_, ggml_reshape_2d(context_, role_weights(c), 1, c.r3()), x);
    x = ggml_reshape_3d(context_, x, c.r3(), c.r2(), c.heads * tokens);
    x = ggml_cont(context_, ggml_permute(context_, x, 1, 0, 2, 3));
    return ggml_reshape_2d(context_, x, c.core_rows(), tokens);
}

ggml_tensor* Composer::multiply(const Run& run, ggml_tensor* x) {
    ggml_tensor* matrix = rows(run);
    return run.storage->layout == Layout::panels ? own_->of_panels(context_, matrix, x)
                                                 : ggml_mul_mat(context_, matrix, x);
}

ggml_tensor* Composer::apply(const Term& term, const Term& key) {
    ggml_tensor* x = source(term);
    // ggml's products with interleaved rows require contiguous tokens.
    if (!ggml_is_contiguous(x)) x = ggml_cont(context_, x);
    if (const auto found = plan_.term_products.find(&key);
        own_ != nullptr && found != plan_.term_products.end()) {
        return ggml_custom_4d(context_, GGML_TYPE_F32, found->second.out, x->ne[1], 1, 1, &x, 1,
                              factors::multiply, GGML_N_TASKS_MAX,
                              const_cast<factors::Product*>(&found->second));
    }
    switch (term.kind) {
        case Term::Kind::rows: return multiply(term.run, x);
        case Term::Kind::transposed: return ggml_mul_mat(context_, transposed(rows(term.run)), x);
        case Term::Kind::combine: return combine(term.combination, x);
        default: return spread(term.combination, x);
    }
}

// Neighboring rows of one storage become one product.
std::vector<Composer::SegmentResult> Composer::results_of(const Product& product) {
    std::vector<SegmentResult> results;
    const auto& segments = product.segments;
    for (size_t s = 0, count = 1; s < segments.size(); s += count) {
        Term term = segments[s].terms.front();
        const bool joins = own_ != nullptr ? factors::is_of_panels(term) : term.kind == Term::Kind::rows;
        for (count = 1; joins && s + count < segments.size(); ++count) {
            const Term& next = segments[s + count].terms.front();
            if (next.kind != term.kind || next.source != term.source || next.offset != term.offset ||
                next.run.storage != term.run.storage || next.run.first != term.run.first + term.run.count)
                break;
            term.run.count += next.run.count;
        }
        ggml_tensor* together = apply(term, segments[s].terms.front());
        for (size_t i = s; i < s + count; ++i) {
            const Segment& segment = segments[i];
            ggml_tensor* y = together;
            if (count > 1) {
                y = ggml_view_2d(context_, y, segment.rows, y->ne[1], y->nb[1],
                                 static_cast<size_t>(segment.first - segments[s].first) * sizeof(float));
            }
            if (segment.scale.storage != nullptr) y = ggml_mul(context_, y, rows(segment.scale));
            results.push_back({segment.first, y});
        }
    }
    return results;
}

ggml_tensor* Composer::product(size_t slot, ggml_tensor* stored) {
    if (!computed_) {
        first_ = results_of(plan_.first);
        core_ = results_of(plan_.core);
        computed_ = true;
    }
    const auto& terms = plan_.last.segments[slot].terms;
    if (const auto sum = plan_.sums.find(slot); own_ != nullptr && sum != plan_.sums.end()) {
        std::vector<ggml_tensor*> sources;
        for (const Term& term : terms) {
            if (FactoredPlan::is_of_factors(term)) sources.push_back(source(term));
        }
        return ggml_custom_inplace(context_, stored, sources.data(), static_cast<int>(sources.size()),
                                   factors::add, GGML_N_TASKS_MAX,
                                   const_cast<factors::Product*>(&sum->second));
    }
    ggml_tensor* sum = stored;
    for (const Term& term : terms) {
        if (!FactoredPlan::is_of_factors(term)) continue;
        ggml_tensor* y = apply(term, term);
        sum = sum == nullptr ? y : ggml_add(context_, sum, y);
    }
    return sum;
}

}  // namespace refold
