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

// Adds the runs of a plan to the segments of its slots. Row runs are split where a slot ends.
static void add_rows(const LinearPlan& plan, size_t first_slot, std::vector<Segment>& segments) {
    int64_t row = 0, column = 0;
    for (const Run& run : plan.runs) {
        if (plan.columns) {
            Term term{Term::Kind::rows, FactoredPlan::kInput, column};
            term.run = {run.storage, 0, run.storage->rows()};
            term.column = run.first;
            term.columns = run.count;
            segments[first_slot].terms.push_back(term);
            column += run.count;
            continue;
        }
        int64_t slot_row = 0;
        for (size_t s = 0; s < plan.slot_rows.size(); ++s) {
            const int64_t from = std::max(row, slot_row),
                          to = std::min(row + run.count, slot_row + plan.slot_rows[s]);
            if (from < to) {
                Term term{Term::Kind::rows, FactoredPlan::kInput, 0, from - slot_row};
                term.run = {run.storage, run.first + from - row, to - from};
                term.columns = plan.in;
                segments[first_slot + s].terms.push_back(term);
            }
            slot_row += plan.slot_rows[s];
        }
        row += run.count;
    }
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
    // A slot that ends inside a group of eight rows needs the plain layout.
    for (const Stored& weights : stored) {
        for (const int64_t rows : weights.plan.slot_rows) {
            for (const Run& run : weights.plan.runs) run.storage->needs_plain |= rows % kInterleaved != 0;
        }
    }
}

void FactoredPlan::add_head_product(const Term& term, int64_t rows) {
    Term alone = term;
    alone.source = 0;
    alone.offset = 0;
    factors::Product product;
    product.append(rows).terms.push_back(alone);
    product.split_work();
    head_products[&term] = std::move(product);
}

void FactoredPlan::add_sum(size_t slot) {
    factors::Product sum;
    Segment& all = sum.append(last.segments[slot].rows);
    for (Term term : last.segments[slot].terms) {
        if (!is_of_factors(term)) continue;
        if (!factors::suits_many_tokens(term)) return;
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
        const Layout layout = plan.layout();
        const bool by_rows = layout == Layout::plain || layout == Layout::q4_0x8,
                   whole = plan.kind == LinearPlan::Kind::whole;
        if (!whole && by_rows) {
            add_rows(plan, stored[i].slot, last.segments);
            continue;
        }
        // Whole storages are multiplied in the first node, beside the factors; in a node of their own what
        // that node cannot read.
        int source = kFirst;
        int64_t row = first.out;
        if (!whole || !(by_rows || layout == Layout::panels)) {
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
            last.segments[stored[i].slot + s].terms.push_back({Term::Kind::identity, source, row});
            row += plan.slot_rows[s];
        }
    }
    for (factors::Product* product : {&first, &core, &last}) product->split_work();
    for (const factors::Product* product : {&first, &last}) {
        for (const Segment& segment : product->segments) {
            for (const Term& term : segment.terms) {
                if (term.kind == Term::Kind::combine || term.kind == Term::Kind::spread)
                    add_head_product(term, segment.rows);
            }
        }
    }
}

}  // namespace refold
