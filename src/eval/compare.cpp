#include "eval/compare.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/text.h"

namespace refold {
namespace {

enum class Kind { mean, perplexity, bits };

Kind kind_of(const std::string& metric, const SampleValue& value) {
    if (!value.weight) return Kind::mean;
    return metric == "bits_per_byte" ? Kind::bits : Kind::perplexity;
}

double figure(Kind kind, double sum, double units) {
    switch (kind) {
        case Kind::mean: break;
        case Kind::perplexity: return std::exp(-sum / units);
        case Kind::bits: return -sum / units / std::log(2.0);
    }
    return sum / units;
}

// One metric of the items that both results have.
struct Pairs {
    Kind kind = Kind::mean;
    BootstrapRows rows{4, {}};  // a, its units, b, its units
    int64_t only_a = 0, only_b = 0;
    bool accuracy = true;

    void add(const std::string& metric, const SampleValue& a, const SampleValue& b) {
        kind = kind_of(metric, a);
        accuracy = accuracy && kind == Kind::mean && (a.value == 0 || a.value == 1) &&
                   (b.value == 0 || b.value == 1);
        only_a += a.value > b.value ? 1 : 0;
        only_b += b.value > a.value ? 1 : 0;
        rows.values.insert(rows.values.end(), {a.value, a.weight.value_or(1), b.value, b.weight.value_or(1)});
    }

    Difference difference(const BootstrapOptions& options) const {
        double sums[4] = {};
        for (size_t i = 0; i < rows.values.size(); ++i) sums[i % 4] += rows.values[i];
        Difference out;
        out.items = static_cast<int64_t>(rows.items());
        out.a = figure(kind, sums[0], sums[1]);
        out.b = figure(kind, sums[2], sums[3]);
        out.test = "none";
        if (rows.items() > 1) {
            const auto interval = paired_bootstrap(
                rows,
                [this](std::span<const double> s) {
                    return figure(kind, s[2], s[3]) - figure(kind, s[0], s[1]);
                },
                options);
            out.low = interval.low;
            out.high = interval.high;
            out.p = interval.p;
            out.test = "paired bootstrap";
        }
        if (accuracy) {
            out.only_a = only_a;
            out.only_b = only_b;
            out.p = mcnemar_exact(only_a, only_b);
            out.test = "McNemar";
        }
        return out;
    }
};

// Compares one group, item by item.
void compare_group(const SampleGroup& group, const std::map<int64_t, Sample>& a,
                   const std::map<int64_t, Sample>& b, const BootstrapOptions& options, Differences& out) {
    std::map<std::string, Pairs> metrics;
    size_t pairs = 0;
    for (const auto& [id, sample] : a) {
        const auto found = b.find(id);
        if (found == b.end()) continue;
        const Sample& other = found->second;
        if (!sample.hash.empty() && !other.hash.empty() && sample.hash != other.hash)
            fail(ErrorCode::input, "compare",
                 "item {}{}{} is not the same in both (lines {} and {}): the results are of other data, "
                 "another protocol or, where windows of tokens are compared, another tokenizer",
                 id, group.task.empty() ? "" : " of ", group.task, sample.line, other.line);
        ++pairs;
        for (const auto& [metric, value] : sample.metrics) {
            const auto same = other.metrics.find(metric);
            if (same != other.metrics.end() && kind_of(metric, value) == kind_of(metric, same->second))
                metrics[metric].add(metric, value, same->second);
        }
    }
    if (pairs < a.size() || pairs < b.size())
        out.notes.push_back(fmt::format(
            "{}{}items without a partner are left out: {} of {} in A, {} of {} in B", group.task,
            group.task.empty() ? "" : ": ", a.size() - pairs, a.size(), b.size() - pairs, b.size()));
    for (const auto& [metric, values] : metrics) {
        Difference row = values.difference(options);
        row.task = group.task;
        row.filter = group.filter;
        row.metric = metric;
        out.rows.push_back(std::move(row));
    }
}

std::set<std::string> tasks_of(const Samples& samples) {
    std::set<std::string> out;
    for (const auto& [group, items] : samples) out.insert(group.task);
    return out;
}

// If the only task has no name, gives it the name of the other's only task.
Samples named_as(const Samples& samples, const Samples& other) {
    const auto own = tasks_of(samples), others = tasks_of(other);
    if (own.size() != 1 || others.size() != 1 || !own.begin()->empty()) return samples;
    Samples out;
    for (const auto& [group, items] : samples) out[{*others.begin(), group.filter}] = items;
    return out;
}

}  // namespace

Differences compare_samples(const Samples& given_a, const Samples& given_b, const BootstrapOptions& options) {
    const Samples a = named_as(given_a, given_b), b = named_as(given_b, given_a);
    Differences out;
    for (const auto& [group, items] : a) {
        const auto found = b.find(group);
        if (found != b.end()) {
            compare_group(group, items, found->second, options, out);
        } else {
            out.notes.push_back(fmt::format("only A has task '{}', filter '{}'", group.task, group.filter));
        }
    }
    for (const auto& [group, items] : b)
        if (!a.contains(group))
            out.notes.push_back(fmt::format("only B has task '{}', filter '{}'", group.task, group.filter));
    if (out.rows.empty()) {
        const auto names = [](const Samples& s) {
            const auto tasks = tasks_of(s);
            return join(std::vector<std::string>(tasks.begin(), tasks.end()), ", ");
        };
        fail(ErrorCode::input, "compare",
             "no item of both has a metric of the same name and kind: got tasks '{}' and '{}'", names(a),
             names(b));
    }
    return out;
}

}  // namespace refold
