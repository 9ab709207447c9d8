#include "engine/ggml/sequence_groups.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <tuple>

#include "core/round_up.h"

namespace refold {
namespace {

// More operations than these are not worth their parts of a graph.
constexpr size_t kMostGroups = 8;
// Where shapes recur, groups begin at multiples of this many sequences, or units of rows.
constexpr int64_t kRecurring = 8;

struct Sequence {
    int64_t first = 0, end = 0;              // rows of the cache
    std::vector<std::vector<int32_t>> asks;  // by row: its tokens; empty if only other steps run it
};

// Sequences that may become a group.
struct Draft {
    std::vector<const Sequence*> members;
    int64_t first, last, end;      // of the first and the last sequence; of all rows
    int64_t distance = 0;          // the largest of which all distances are multiples
    int64_t longest, most, total;  // rows of a sequence; tokens of a sequence, of all, one at least

    explicit Draft(const Sequence& s)
        : members{&s},
          first(s.first),
          last(s.first),
          end(s.end),
          longest(s.end - s.first),
          most(std::max<int64_t>(1, static_cast<int64_t>(s.asks.size()))),
          total(most) {}

    void merge(const Draft& other) {
        distance = std::gcd(std::gcd(distance, other.distance), std::abs(other.first - first));
        first = std::min(first, other.first);
        last = std::max(last, other.last);
        end = std::max(end, other.end);
        longest = std::max(longest, other.longest);
        most = std::max(most, other.most);
        total += other.total;
        members.insert(members.end(), other.members.begin(), other.members.end());
    }
};

class Grouping {
public:
    Grouping(std::span<const CacheRow> tokens, const GroupedCache& cache, const AttentionCosts& costs)
        : tokens_(tokens),
          others_(cache.others),
          cached_(cache.rows),
          unit_(cache.unit),
          costs_(costs),
          recurring_(!others_.empty()) {}

    GroupedSequences run() {
        const std::vector<Sequence> sequences = find_sequences();
        std::vector<Draft> drafts = merged(sequences);
        unite_last(drafts);
        double cost = 0;
        for (const Draft& draft : drafts) cost += cost_of(best(draft));
        Draft all = drafts.front();
        for (size_t i = 1; i < drafts.size(); ++i) all.merge(drafts[i]);
        if (cost_of(best(all)) <= cost) drafts.assign(1, all);
        out_.queries.resize(tokens_.size());
        for (Draft& draft : drafts) add(draft);
        const auto in_order = [&] {
            if (out_.tokens.size() != tokens_.size()) return false;
            for (size_t i = 0; i < tokens_.size(); ++i)
                if (out_.tokens[i] != static_cast<int32_t>(i)) return false;
            return true;
        };
        out_.shape.in_order = in_order();
        return std::move(out_);
    }

private:
    std::vector<Sequence> find_sequences() const {
        std::map<int32_t, std::map<int32_t, std::vector<int32_t>>> found;  // by first row and own one
        for (size_t t = 0; t < tokens_.size(); ++t)
            found[tokens_[t].first][tokens_[t].own].push_back(static_cast<int32_t>(t));
        for (const CacheRow& other : others_) found[other.first][other.own];
        std::vector<Sequence> out;
        for (auto& [first, rows] : found) {
            Sequence& s = out.emplace_back(Sequence{first, rows.rbegin()->first + 1, {}});
            for (auto& [row, asking] : rows)
                if (!asking.empty()) s.asks.push_back(std::move(asking));
        }
        return out;
    }

    // Neighbors of similar lengths, as long as one operation is cheaper than two.
    std::vector<Draft> merged(const std::vector<Sequence>& sequences) const {
        std::vector<Draft> singles(sequences.begin(), sequences.end());
        const auto kind = [&](const Draft& d) {
            const auto power = [](int64_t n) { return std::bit_ceil(static_cast<uint64_t>(n)); };
            return std::tuple(power(d.most), power(round_up(d.longest, unit_)), d.first);
        };
        std::ranges::sort(singles, {}, kind);
        std::vector<Draft> out;
        for (const Draft& next : singles) {
            if (!out.empty()) {
                Draft both = out.back();
                both.merge(next);
                if (cost_of(best(both)) <= cost_of(best(out.back())) + cost_of(best(next))) {
                    out.back() = std::move(both);
                    continue;
                }
            }
            out.push_back(next);
        }
        return out;
    }

    // By what does not depend on who asks.
    static void unite_last(std::vector<Draft>& drafts) {
        if (drafts.size() <= kMostGroups) return;
        std::ranges::stable_sort(drafts, std::greater(), [](const Draft& d) { return d.members.size(); });
        for (size_t i = kMostGroups; i < drafts.size(); ++i) drafts[kMostGroups - 1].merge(drafts[i]);
        drafts.erase(drafts.begin() + kMostGroups, drafts.end());
    }

    double cost_of(const SequenceGroup& group) const {
        return costs_.operation + static_cast<double>(group.sequences * group.rows) *
                                      (1 + static_cast<double>(group.tokens - 1) * costs_.further_token);
    }

    // Not rounded: rounding would favor single sequences.
    SequenceGroup best(const Draft& draft) const {
        const SequenceGroup whole = stretch(draft, false);
        // One, or sequences at no distances.
        if (draft.longest > std::min(draft.distance, cached_ - draft.last)) return whole;
        const SequenceGroup apart = at_distances(draft, false);
        return cost_of(apart) < cost_of(whole) ? apart : whole;
    }

    SequenceGroup stretch(const Draft& draft, bool recurring) const {
        const bool several = recurring && draft.members.size() > 1;
        const int64_t unit = several ? kRecurring * unit_ : unit_,
                      begin = several ? draft.first / unit * unit : draft.first,
                      rows = std::min(round_up(draft.end - begin, unit), cached_),
                      first = std::min(begin, cached_ - rows);
        return {first, 0, 1, recurring ? recurring_count(draft.total) : draft.total, rows};
    }

    SequenceGroup at_distances(const Draft& draft, bool recurring) const {
        const int64_t step = draft.distance,
                      rows = std::min({round_up(draft.longest, unit_), step, cached_ - draft.last});
        int64_t first = draft.first, count = (draft.last - first) / step + 1;
        if (!recurring) return {first, step, count, draft.most, rows};
        const int64_t more = first / step % kRecurring;
        first -= more * step;
        count = std::min(round_up(count + more, kRecurring), (cached_ - rows - first) / step + 1);
        return {first, step, count, recurring_count(draft.most), rows};
    }

    void ask(const std::vector<int32_t>& asking) {
        for (const int32_t token : asking)
            out_.queries[static_cast<size_t>(token)] = static_cast<int32_t>(out_.tokens.size());
        out_.tokens.push_back(asking.front());
    }

    void add(Draft& draft) {
        const SequenceGroup exact = best(draft), group = exact.distance > 0 ? at_distances(draft, recurring_)
                                                                            : stretch(draft, recurring_);
        const size_t begin = out_.tokens.size();
        std::ranges::sort(draft.members, {}, &Sequence::first);
        for (const Sequence* sequence : draft.members) {
            if (group.distance > 0) {
                const auto place = (sequence->first - group.first) / group.distance * group.tokens;
                fill(begin + static_cast<size_t>(place));
            }
            for (const auto& asking : sequence->asks) ask(asking);
        }
        fill(begin + static_cast<size_t>(group.queries()));
        out_.shape.groups.push_back(group);
    }

    // Padding: queries whose results nobody reads.
    void fill(size_t end) {
        const int32_t any = out_.tokens.empty() ? 0 : out_.tokens.back();
        out_.tokens.resize(end, any);
    }

    std::span<const CacheRow> tokens_, others_;
    int64_t cached_, unit_;
    AttentionCosts costs_;
    bool recurring_;
    GroupedSequences out_;
};

}  // namespace

CacheRow SequenceGroup::seen(int64_t query, CacheRow token) const {
    const int64_t base = first_of(query / tokens), from = token.first - base, own = token.own - base;
    if (from < 0 || own >= rows || (sequences > 1 && from != 0)) return {0, 0};
    return {static_cast<int32_t>(from), static_cast<int32_t>(own)};
}

int64_t recurring_count(int64_t count) {
    if (count <= 8) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
    return round_up<int64_t>(count, count <= 64 ? 8 : 32);
}

GroupedSequences group_sequences(std::span<const CacheRow> tokens, const GroupedCache& cache,
                                 const AttentionCosts& costs) {
    return Grouping(tokens, cache, costs).run();
}

}  // namespace refold
