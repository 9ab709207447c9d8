#include "engine/ggml/factored_plan.h"

#include <algorithm>

namespace refold {

using factors::Segment;
using factors::Term;

int64_t FactoredPlan::append_once(factors::Product& product, const Term& term, int64_t rows,
                                  const Run& scale) {
    for (const Segment& segment : product.segments) {
        if (segment.terms.front() == term && segment.scale == scale) return segment.first;
    }
    Segment& segment = product.append(rows);
    segment.terms.push_back(term);
    segment.scale = scale;
    return segment.first;
}

void FactoredPlan::mark_storage_use() {
    constexpr int64_t kInterleaved = 8;
    for_each_segment([](const Segment& segment) {
        if (segment.scale.storage != nullptr) segment.scale.storage->needs_plain = true;
        for (const Term& term : segment.terms) {
            if (term.combination.head.storage != nullptr) {
                term.combination.head.storage->needs_plain = true;
                term.combination.roles.storage->needs_plain = true;
                continue;
            }
            term.run.storage->used_in_runs = true;
            const bool groups = term.run.first % kInterleaved == 0 && term.run.count % kInterleaved == 0;
            term.run.storage->needs_plain |= term.kind == Term::Kind::transposed || !groups;
        }
    });
}

void FactoredPlan::add_term_product(const Term& term, int64_t rows) {
    Term alone = term;
    alone.source = 0;
    alone.offset = 0;
    factors::Product product;
    product.append(rows).terms.push_back(alone);
    product.split_work();
    term_products[&term] = std::move(product);
}

void FactoredPlan::add_sum(size_t slot) {
    factors::Product sum;
    Segment& all = sum.append(last.segments[slot].rows);
    for (Term term : last.segments[slot].terms) {
        if (!is_of_factors(term)) continue;
        if (!factors::is_of_panels(term)) return;
        term.source = 1 + static_cast<int>(all.terms.size());
        term.offset = 0;
        all.terms.push_back(term);
    }
    if (all.terms.empty()) return;
    sum.split_work();
    sums[slot] = std::move(sum);
}

void FactoredPlan::finish() {
    for (const Stored& part : stored) {
        for (size_t s = 0; s < part.plan.slot_rows.size(); ++s) add_sum(part.slot + s);
    }
    for (size_t i = 0; i < stored.size(); ++i) {
        const LinearPlan& plan = stored[i].plan;
        // Panels of one storage are multiplied in the first node, beside the factors.
        int source = kFirst;
        int64_t row = first.out;
        if (plan.kind != LinearPlan::Kind::whole || plan.layout() != Layout::panels) {
            source = kSeparate + static_cast<int>(separate.size());
            row = 0;
            separate.push_back(i);
        } else {
            Term term{Term::Kind::rows, kInput};
            term.run = plan.runs.front();
            term.run = {term.run.storage, 0, term.run.storage->rows()};
            term.columns = plan.in;
            first.append(term.run.count).terms.push_back(term);
        }
        for (size_t s = 0; s < plan.slot_rows.size(); ++s) {
            auto& terms = last.segments[stored[i].slot + s].terms;
            terms.insert(terms.begin(), {Term::Kind::identity, source, row});
            row += plan.slot_rows[s];
        }
    }
    for (factors::Product* product : {&first, &core, &last}) product->split_work();
    for_each_segment([&](const Segment& segment) {
        for (const Term& term : segment.terms) {
            if (is_of_factors(term) && !factors::is_of_panels(term)) add_term_product(term, segment.rows);
        }
    });
}

}  // namespace refold
