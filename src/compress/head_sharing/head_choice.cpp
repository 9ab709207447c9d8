#include "compress/head_sharing/head_choice.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "compress/head_sharing/aligned_weights.h"
#include "compress/head_sharing/head_matches.h"
#include "compress/head_sharing/replacement_costs.h"
#include "compress/method/selection.h"
#include "core/error.h"

namespace refold::direct_share {
namespace {

using nlohmann::json;

// Best matches by the options `metric` and `align`.
std::vector<Match> find_matches(const Model& model, const HeadUnits& units, const Selection& selection,
                                const std::vector<bool>& replaceable, const Step& step) {
    const Options& options = step.options;
    if (by_output(options)) {
        const OutputComparison comparison{.output_shared = options.text("share") == "qkvo",
                                          .aligned = is_aligned(options),
                                          .key = options.text("share") + " " + options.text("matching")};
        return best_matches(model, units.stored(), head_output_cosines(model, units, comparison, step),
                            replaceable);
    }
    if (is_aligned(options))
        return best_matches(model, units.stored(), aligned_cosines(model, units), replaceable);
    return best_head_matches(model, units, selection.on, replaceable);
}

// The matches that change the predictions least, each made alone.
std::vector<Match> least_harmful(const Model& model, const Selection& selection,
                                 const std::vector<Match>& matches, size_t count, Step& step, json& details) {
    std::vector<Replacement> all;
    for (const Match& match : matches) all.push_back({match.later, match.former});
    const bool aligned = is_aligned(step.options);
    const auto maps = aligned ? solve_head_maps(model, all, step) : std::vector<HeadMap>();
    const HeadUnits units(model, union_of(kQkvo, selection.shared), selection.shared);
    const auto made = [&](const Match& match) {
        std::vector<HeadMap> own;
        for (const Unit& unit : units.equal(match.later))
            std::copy_if(maps.begin(), maps.end(), std::back_inserter(own),
                         [&](const HeadMap& map) { return map.unit == unit; });
        std::vector<Requantized> ignored;
        return replaced(model, {{match.later, match.former}}, selection.shared, own, ignored);
    };
    const std::string key = step.options.text("share") + " " + selection.name + (aligned ? " aligned" : "");
    const auto costs = replacement_costs(model, units, matches, made, key, step);
    auto selected = cheapest(matches, costs, count);
    double sum = 0;
    json& list = details["divergence"] = json::array();
    for (size_t i = 0; i < matches.size(); ++i) {
        const bool chosen = std::any_of(selected.begin(), selected.end(),
                                        [&](const Match& m) { return m.later == matches[i].later; });
        sum += chosen ? costs[i] : 0;
        list.push_back({matches[i].later.layer, matches[i].later.index, costs[i]});
    }
    step.report.lines.push_back(
        fmt::format("divergence of {} replacements, each measured alone; of the chosen ones together {:.4f}",
                    matches.size(), sum));
    return selected;
}

}  // namespace

bool by_output(const Options& options) { return options.text("metric") == "output"; }
bool is_aligned(const Options& options) { return options.text("align") == "symmetries"; }
bool by_cost(const Options& options) { return options.text("select") == "sensitivity"; }

bool is_calibrated(const Options& options) {
    return by_output(options) || is_aligned(options) || by_cost(options);
}

void check_calibrated(const Options& options) {
    const std::string& match = options.text("match");
    if ((by_output(options) || is_aligned(options)) && match != "qk" && match != "random" && match != "none")
        fail(ErrorCode::usage, "direct_share",
             "match={} names weights to compare: with metric=output or align=symmetries whole heads are "
             "compared, so leave it at qk",
             match);
    if (is_aligned(options) && options.text("share") != "qkv")
        fail(ErrorCode::usage, "direct_share",
             "align=symmetries puts what differs into the later head's own columns of the output projection: "
             "it needs share=qkv");
    if (is_aligned(options) && match == "none")
        fail(ErrorCode::usage, "direct_share", "match=none leaves heads out: align has no meaning with it");
    if ((is_aligned(options) || by_cost(options)) && options.text("keep") == "latter")
        fail(ErrorCode::usage, "direct_share",
             "keep=latter replaces earlier heads: align=symmetries and select=sensitivity are for "
             "keep=former");
}

Model replaced(const Model& model, const std::vector<Replacement>& replacements,
               const std::vector<Slot>& slots, const std::vector<HeadMap>& maps,
               std::vector<Requantized>& requantized) {
    return with_head_maps(share_heads(model, replacements, slots, requantized), maps, requantized);
}

std::vector<Match> choose(const Model& model, const Model& compared, const Selection& selection, size_t count,
                          Step& step, json& details) {
    const Options& options = step.options;
    StepReport& report = step.report;
    const auto layers = parse_layers(options.text("layers"), compared.topology.layers.size());
    const std::vector<Slot> slots = is_calibrated(options) ? kQkvo : union_of(selection.on, selection.shared);
    need_stored(compared, slots, layers, "direct_share");
    const HeadUnits units(compared, slots, selection.shared);
    const std::set<size_t> wanted(layers.begin(), layers.end());
    std::vector<bool> replaceable;
    for (const Unit& unit : units.stored()) replaceable.push_back(units.lies_in(unit, wanted));
    if (is_aligned(options)) {
        const auto own = have_own_outputs(model, units);
        std::transform(own.begin(), own.end(), replaceable.begin(), replaceable.begin(),
                       std::logical_and<>());
    }

    std::vector<Match> selected;
    if (compared.shapes_only || (is_calibrated(options) && step.dry_run())) {
        selected = placeholders(units.stored(), replaceable, count);
        report_placeholders(report, details);
    } else {
        const auto matches = find_matches(compared, units, selection, replaceable, step);
        details["candidates"] = matches.size();
        selected = by_cost(options) ? least_harmful(model, selection, matches, count, step, details)
                                    : largest(matches, count);
        report_similarities(matches, selected, "heads", report, details);
    }
    if (selected.size() < count) {
        report.lines.push_back(fmt::format(
            "{} heads asked for, {} can be replaced (layer 0, what is already shared and layers "
            "that were not named cannot{})",
            count, selected.size(),
            is_aligned(options) ? ", nor, with align, heads whose outputs several layers use" : ""));
    }
    if (options.text("match") != "random") return selected;
    report.lines.emplace_back(
        "control: each takes a random earlier head; cosines are those of its best match");
    return with_random_formers(selected, units.stored(), seed_of(options));
}

std::vector<HeadMap> maps_of(const Model& model, const std::vector<Replacement>& replacements, Step& step,
                             json& details) {
    if (!is_aligned(step.options) || replacements.empty()) return {};
    if (step.dry_run()) {
        const HeadUnits units(model, kQkvo, kQkv);
        std::vector<HeadMap> out;
        for (const auto& replacement : replacements)
            for (const Unit& unit : units.equal(replacement.unit)) out.push_back({unit, {}, 0});
        return out;
    }
    auto maps = solve_head_maps(model, replacements, step);
    double sum = 0;
    json& list = details["explained"] = json::array();
    for (const HeadMap& map : maps) {
        list.push_back({map.unit.layer, map.unit.index, map.explained});
        sum += map.explained;
    }
    step.report.lines.push_back(
        fmt::format("output projections of {} heads mapped: on average they explain {:.1f} % of what their "
                    "heads computed on held-out text",
                    maps.size(), 100 * sum / static_cast<double>(maps.size())));
    return maps;
}

}  // namespace refold::direct_share
