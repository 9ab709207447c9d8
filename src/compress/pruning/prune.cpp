#include "compress/pruning/prune.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/method/selection.h"
#include "compress/rewrite/channels.h"
#include "compress/rewrite/equal_size.h"
#include "compress/rewrite/heads.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/progress.h"

namespace refold {
namespace {

using nlohmann::json;

// A KV group, or a channel of a layer's FFN.
struct Scored {
    Unit unit;
    double importance = 0;
};

using Scores = std::map<size_t, std::vector<double>>;  // layer -> importance of each index

struct Request {
    const char* method;
    const ImportanceOf& importance;
};

void score(const Model& model, Scores& scores, const std::vector<Slot>& slots, const Request& request) {
    if (!request.importance) {
        for (auto& [p, values] : scores) {
            for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
        }
        return;
    }
    std::vector<std::pair<const size_t, std::vector<double>>*> entries;
    for (auto& entry : scores) entries.push_back(&entry);
    Progress progress("weighing layers", entries.size(), "layers");
    parallel_for(static_cast<int64_t>(entries.size()), default_threads(), [&](int64_t i) {
        auto& [p, values] = *entries[static_cast<size_t>(i)];
        values = request.importance(model, p, slots);
        for (const double value : values) {
            if (!std::isfinite(value))
                fail(ErrorCode::input, request.method, "{}: weights of layer {} are not finite", model.label,
                     p);
        }
        progress.advance(1);
    });
    progress.finish();
}

using Counts = std::map<size_t, size_t>;  // by layer

// How many units go: of each layer, and so many more of any.
struct Quota {
    Counts of_layer;
    size_t more = 0;
    size_t more_per_layer = 0;
};

// The option `rank`: see pruning_options().
Quota quota_of(const Options& options, size_t total, const Counts& units_of_layer) {
    const double ratio = options.number("ratio");
    const std::string& rank = options.text("rank");
    if (rank == "global") return {{}, part_of(ratio, total), total};
    Quota out;
    if (rank == "layer") {
        for (const auto& [p, units] : units_of_layer) out.of_layer[p] = part_of(ratio, units);
        return out;
    }
    size_t candidates = 0;
    for (const auto& [p, units] : units_of_layer) candidates += units;
    out.more = std::min(part_of(ratio, total), candidates);
    out.more_per_layer = 1;
    const size_t aim = out.more;
    for (const auto& [p, units] : units_of_layer) {
        out.of_layer[p] = candidates == 0 ? 0 : aim * units / candidates;
        out.more -= out.of_layer[p];
    }
    return out;
}

// The units with the smallest importance, as many as the quota says. Of equal ones the first.
std::set<Unit> least_important(std::vector<Scored> candidates, Quota quota) {
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Scored& a, const Scored& b) { return a.importance < b.importance; });
    Counts more;
    std::set<Unit> out;
    for (const Scored& candidate : candidates) {
        const size_t layer = candidate.unit.layer;
        if (size_t& own = quota.of_layer[layer]; own > 0) {
            --own;
        } else if (quota.more > 0 && more[layer] < quota.more_per_layer) {
            --quota.more;
            ++more[layer];
        } else {
            continue;
        }
        out.insert(candidate.unit);
    }
    return out;
}

// ---- heads

Model prune_heads(const Model& model, Step& step, const Request& request,
                  std::vector<Requantized>& requantized, json& details) {
    const auto layers = parse_layers(step.options.text("layers"), model.topology.layers.size());
    need_stored(model, kQkvo, layers, request.method);
    const HeadUnits units(model, kQkvo, kQkvo);
    const std::set<size_t> wanted(layers.begin(), layers.end());
    Scores scores;
    Counts units_of_layer;
    for (const Unit& unit : units.stored()) {
        if (!units.lies_in(unit, wanted)) continue;
        units_of_layer[unit.layer] = static_cast<size_t>(model.config.n_head_kv_of(unit.layer));
        scores[unit.layer].resize(units_of_layer[unit.layer]);
    }
    score(model, scores, kQkvo, request);
    std::vector<Scored> candidates;
    for (const Unit& unit : units.stored()) {
        if (units.lies_in(unit, wanted))
            candidates.push_back({unit, scores[unit.layer][static_cast<size_t>(unit.index)]});
    }
    const size_t total = count_head_units(model);
    const std::set<Unit> pruned = least_important(candidates, quota_of(step.options, total, units_of_layer));
    Model out = drop_heads(model, pruned, requantized);

    std::map<size_t, std::vector<int64_t>> by_layer;
    details["heads"] = json::array();
    for (const Unit& unit : pruned) {
        by_layer[unit.layer].push_back(unit.index);
        details["heads"].push_back({unit.layer, unit.index});
    }
    step.report.lines.push_back(fmt::format(
        "{} of {} {} left out", pruned.size(), total,
        model.config.q_per_kv() > 1 ? "KV groups (a key/value head with its query heads)" : "heads"));
    for (const auto& [p, indices] : by_layer) {
        step.report.lines.push_back(
            fmt::format("  layer {}: {}{}", p, fmt::join(indices, ", "),
                        out.config.n_head_kv_of(p) == 0 ? " (no attention left)" : ""));
    }
    return out;
}

// ---- FFN channels

// The channels that stay: a multiple of `multiple`, filled up with the most important of those to be pruned.
std::vector<int64_t> kept_channels(const std::set<Unit>& pruned, size_t layer,
                                   const std::vector<double>& scores, int64_t multiple) {
    std::vector<int64_t> kept, going;
    for (int64_t c = 0; c < static_cast<int64_t>(scores.size()); ++c)
        (pruned.contains({layer, c}) ? going : kept).push_back(c);
    std::stable_sort(going.begin(), going.end(), [&](int64_t a, int64_t b) {
        return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
    });
    for (size_t i = 0; i < going.size() && static_cast<int64_t>(kept.size()) % multiple != 0; ++i)
        kept.push_back(going[i]);
    std::sort(kept.begin(), kept.end());
    return kept;
}

Model prune_channels(const Model& model, Step& step, const Request& request,
                     std::vector<Requantized>& requantized, json& details) {
    const auto layers = parse_layers(step.options.text("layers"), model.topology.layers.size());
    const auto slots = parse_slots("ffn", *model.family);
    const std::vector<TiedLayers> ffns = ffns_of(model, slots, layers, request.method);
    Scores scores;
    Counts channels_of_layer;
    for (const TiedLayers& tied : ffns) {
        const auto channels = static_cast<size_t>(model.config.n_ff_of(tied.front()));
        scores[tied.front()].resize(channels_of_layer[tied.front()] = channels);
    }
    score(model, scores, slots, request);
    std::vector<Scored> candidates;
    for (const auto& [p, values] : scores) {
        for (size_t c = 0; c < values.size(); ++c)
            candidates.push_back({{p, static_cast<int64_t>(c)}, values[c]});
    }
    const auto everywhere = parse_layers("all", model.topology.layers.size());
    size_t total = 0;
    for (const TiedLayers& tied : tied_layers(model, everywhere, slots))
        total += static_cast<size_t>(model.config.n_ff_of(tied.front()));
    const auto pruned = least_important(candidates, quota_of(step.options, total, channels_of_layer));

    Model out = model;
    size_t gone = 0;
    json& list = details["ffn"] = json::object();
    for (const TiedLayers& tied : ffns) {
        const size_t p = tied.front();
        const auto kept = kept_channels(pruned, p, scores[p], step.options.integer("multiple"));
        if (kept.size() == scores[p].size()) continue;
        gone += scores[p].size() - kept.size();
        list[std::to_string(p)] = kept.size();
        keep_channels(out, tied, kept, requantized);
        step.report.lines.push_back(fmt::format("  FFN of layers {}: {} of {} channels stay",
                                                layers_text(tied), kept.size(), scores[p].size()));
    }
    out.drop_unreferenced();
    details["channels"] = gone;
    step.report.lines.push_back(fmt::format("{} of {} FFN channels left out", gone, total));
    return out;
}

}  // namespace

Model prune(const Model& model, Step& step, const char* method, const ImportanceOf& importance) {
    const Request request{method, importance};
    const std::string& what = step.options.text("what");
    json details = json::object();
    std::vector<Requantized> requantized;
    Model out = model;
    if (what != "ffn") out = prune_heads(out, step, request, requantized, details);
    if (what != "heads") out = prune_channels(out, step, request, requantized, details);
    if (what == "heads") report_equal_size(model, out, step.options.number("ratio"), step.report, details);
    if (!importance) {
        details["placeholders"] = true;
        step.report.lines.emplace_back(
            "Importance is known when the model is made: the choice is a placeholder, evenly spread.");
    }
    report_requantized(requantized, "", step.report, details);
    step.report.details = details.dump();
    return out;
}

std::vector<OptionSpec> pruning_options(const char* ratio, const char* what, const char* rank) {
    using Kind = OptionSpec::Kind;
    return {
        {"ratio", Kind::number, ratio, "part of all KV groups, or channels, to leave out", 0.0, 1.0},
        {.name = "what",
         .kind = Kind::choice,
         .fallback = what,
         .help = "what is left out: KV groups, FFN channels, or both",
         .choices = {"heads", "ffn", "both"}},
        {.name = "rank",
         .kind = Kind::choice,
         .fallback = rank,
         .help = "over the whole model, or layer by layer; even: as many as global, the same number of each "
                 "layer",
         .choices = {"global", "layer", "even"}},
        layers_option(),
        {"multiple", Kind::integer, "32", "a layer keeps a multiple of so many FFN channels", 1},
    };
}

}  // namespace refold
