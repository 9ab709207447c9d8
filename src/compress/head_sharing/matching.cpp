#include "compress/head_sharing/matching.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "core/error.h"

namespace refold {
namespace {

using nlohmann::json;

// Rounds to a grid of 2^-40, so that equal weights give equal cosines in whatever order products were summed:
// far coarser than rounding errors in float64, far finer than any meaningful difference.
double snap(double cosine) { return std::ldexp(std::nearbyint(std::ldexp(cosine, 40)), -40); }

bool by_cosine(const Match& a, const Match& b) { return a.cosine > b.cosine; }

// With linear interpolation between ranks, as numpy.percentile.
double quantile(const std::vector<double>& ascending, double part) {
    const double place = part * static_cast<double>(ascending.size() - 1);
    const auto low = static_cast<size_t>(place);
    const size_t high = std::min(low + 1, ascending.size() - 1);
    return ascending[low] + (place - static_cast<double>(low)) * (ascending[high] - ascending[low]);
}

std::string text(Unit unit) { return fmt::format("{}.{}", unit.layer, unit.index); }
json to_json(Unit unit) { return json::array({unit.layer, unit.index}); }

// Union-find over units. Each set has a chosen member.
class ConnectedUnits {
public:
    Unit chosen(Unit unit) {
        const auto found = parent_.try_emplace(unit, unit).first;
        return found->second == unit ? unit : found->second = chosen(found->second);
    }
    // The chosen member of the joined set is the later one of the two.
    void connect(Unit a, Unit b) {
        a = chosen(a);
        b = chosen(b);
        const bool first = a.layer != b.layer ? a.layer > b.layer : a.index < b.index;
        parent_[first ? b : a] = first ? a : b;
    }

private:
    std::map<Unit, Unit> parent_;
};

}  // namespace

std::vector<Match> best_matches(const Model& model, const std::vector<Unit>& units,
                                const std::vector<double>& gram, const std::vector<bool>& replaceable) {
    const size_t n = units.size();
    for (size_t i = 0; i < n; ++i) {
        if (!std::isfinite(gram[i * n + i])) {
            fail(ErrorCode::input, "match", "{}: weights of layer {}, unit {} are not finite", model.label,
                 units[i].layer, units[i].index);
        }
    }
    std::vector<Match> matches;
    for (size_t i = 0; i < n; ++i) {
        if (!replaceable[i]) continue;
        Match best{units[i], {}, -2.0};
        for (size_t j = 0; j < i && units[j].layer < units[i].layer; ++j) {
            const double norms = std::sqrt(gram[i * n + i]) * std::sqrt(gram[j * n + j]);
            const double cosine = norms > 0 ? snap(gram[i * n + j] / norms) : 0.0;
            if (cosine > best.cosine) {
                best.cosine = cosine;
                best.former = units[j];
            }
        }
        if (best.cosine > -2.0) matches.push_back(best);
    }
    return matches;
}

std::vector<Match> largest(const std::vector<Match>& matches, size_t count) {
    std::vector<Match> chosen = matches;
    std::stable_sort(chosen.begin(), chosen.end(), by_cosine);
    chosen.resize(std::min(count, chosen.size()));
    std::sort(chosen.begin(), chosen.end(), [](const Match& a, const Match& b) { return a.later < b.later; });
    return chosen;
}

std::vector<Match> cheapest(const std::vector<Match>& matches, const std::vector<double>& costs,
                            size_t count) {
    std::vector<size_t> order(matches.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return costs[a] < costs[b]; });
    order.resize(std::min(count, order.size()));
    std::sort(order.begin(), order.end());  // matches are in the order of layer and index
    std::vector<Match> chosen;
    for (const size_t i : order) chosen.push_back(matches[i]);
    return chosen;
}

std::vector<Match> with_random_formers(const std::vector<Match>& matches, const std::vector<Unit>& units,
                                       uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<Match> out = matches;
    for (Match& match : out) {
        const auto earlier = std::partition_point(units.begin(), units.end(),
                                                  [&](const Unit& u) { return u.layer < match.later.layer; });
        match.former = units[random() % static_cast<uint64_t>(earlier - units.begin())];
    }
    return out;
}

std::vector<Match> placeholders(const std::vector<Unit>& units, const std::vector<bool>& replaceable,
                                size_t count) {
    std::vector<Match> possible;
    size_t first = 0;  // units of the first layer
    while (first < units.size() && units[first].layer == units[0].layer) ++first;
    for (size_t i = first; i < units.size(); ++i) {
        if (!replaceable[i]) continue;
        const Unit former = units[static_cast<size_t>(units[i].index) % first];
        possible.push_back({units[i], former, std::numeric_limits<double>::quiet_NaN()});
    }
    count = std::min(count, possible.size());
    std::vector<Match> chosen;
    for (size_t i = 0; i < count; ++i) chosen.push_back(possible[i * possible.size() / count]);
    return chosen;
}

std::vector<Replacement> resolve(const std::vector<Match>& selected, Chain chain) {
    std::map<Unit, Unit> source;
    std::set<Unit> copied;
    for (const auto& match : selected) {
        Unit former = match.former;
        // In ascending order a former unit has already been resolved.
        if (const auto found = source.find(former); chain == Chain::root && found != source.end())
            former = found->second;
        source[match.later] = former;
        copied.insert(match.former);
    }
    std::vector<Replacement> out;
    for (const auto& [unit, former] : source) {
        if (chain == Chain::repo && copied.contains(unit)) continue;
        out.push_back({unit, former});
    }
    return out;
}

std::vector<Replacement> resolve_latter(const std::vector<Match>& selected) {
    ConnectedUnits sets;
    std::set<Unit> units;
    for (const auto& match : selected) {
        sets.connect(match.later, match.former);
        units.insert({match.later, match.former});
    }
    std::vector<Replacement> out;
    for (const Unit& unit : units) {
        if (const Unit kept = sets.chosen(unit); kept != unit) out.push_back({unit, kept});
    }
    return out;
}

void report_similarities(const std::vector<Match>& matches, const std::vector<Match>& selected,
                         const std::string& what, StepReport& report, json& details) {
    if (matches.empty()) return;
    std::vector<double> values;
    for (const auto& match : matches) values.push_back(match.cosine);
    std::sort(values.begin(), values.end());
    json& similarity =
        details["similarity"] = {{"minimum", values.front()},       {"quartile_1", quantile(values, 0.25)},
                                 {"median", quantile(values, 0.5)}, {"quartile_3", quantile(values, 0.75)},
                                 {"maximum", values.back()},        {"cut_off", nullptr}};
    report.lines.push_back(
        fmt::format("best match of {} {}: cosine min {:.5f}, quartiles {:.5f} / {:.5f} / {:.5f}, max {:.5f}",
                    values.size(), what, values.front(), quantile(values, 0.25), quantile(values, 0.5),
                    quantile(values, 0.75), values.back()));
    if (selected.empty()) return;
    const auto last = std::max_element(selected.begin(), selected.end(), by_cosine);
    similarity["cut_off"] = last->cosine;
    report.lines.push_back(fmt::format("smallest cosine chosen: {:.5f}", last->cosine));
}

void report_pairs(const std::vector<Match>& selected, const std::vector<Replacement>& replacements,
                  StepReport& report, json& details) {
    std::map<Unit, Unit> source;
    for (const auto& r : replacements) source[r.unit] = r.source;
    std::set<Unit> chosen, copied;
    for (const auto& match : selected) chosen.insert(match.later);
    for (const auto& r : replacements) copied.insert(r.source);
    // A replaced unit whose original weights another one copies is still stored.
    size_t removed = 0;
    for (const auto& r : replacements) removed += copied.contains(r.unit) ? 0 : 1;
    details["selected"] = selected.size();
    details["replaced"] = replacements.size();
    details["removed"] = removed;
    report.lines.push_back(fmt::format("{} selected, {} replaced, {} no longer stored", selected.size(),
                                       replacements.size(), removed));

    std::vector<Match> ranked = selected;
    std::stable_sort(ranked.begin(), ranked.end(), by_cosine);
    json& pairs = details["pairs"] = json::array();
    report.lines.emplace_back("later <- former (layer.unit, from 0): cosine");
    for (const auto& match : ranked) {
        const auto found = source.find(match.later);
        std::string note;
        if (found == source.end()) {
            note = "  (keeps its own weights: another takes them)";
        } else if (found->second != match.former) {
            note = fmt::format("  (itself shared: takes {})", text(found->second));
        } else if (source.contains(match.former)) {
            note = "  (itself shared: takes its original weights)";
        }
        const std::string cosine = std::isnan(match.cosine) ? "" : fmt::format(": {:.5f}", match.cosine);
        report.lines.push_back(
            fmt::format("  {} <- {}{}{}", text(match.later), text(match.former), cosine, note));
        pairs.push_back({{"later", to_json(match.later)},
                         {"former", to_json(match.former)},
                         {"cosine", match.cosine},
                         {"former_is_shared", chosen.contains(match.former)},
                         {"takes", found == source.end() ? json(nullptr) : to_json(found->second)}});
    }
    json& list = details["replacements"] = json::array();
    for (const auto& r : replacements) list.push_back({to_json(r.unit), to_json(r.source)});
}

void report_placeholders(StepReport& report, json& details) {
    details["placeholders"] = true;
    report.lines.emplace_back(
        "There are only shapes, no weights to compare: the pairs are placeholders. Sizes are exact, the "
        "choice "
        "is not.");
}

}  // namespace refold
