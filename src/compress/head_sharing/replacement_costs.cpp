#include "compress/head_sharing/replacement_costs.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "compress/compensation/layer_probes.h"
#include "compress/method/lazy.h"
#include "compress/method/work.h"
#include "core/progress.h"

namespace refold {
namespace {

constexpr Computation kCost{"divergence of a shared head", 1};
constexpr int64_t kProbeTokens = 1024;

}  // namespace

std::vector<double> replacement_costs(const Model& model, const HeadUnits& units,
                                      const std::vector<Match>& matches,
                                      const std::function<Model(const Match&)>& replaced,
                                      const std::string& key, const Step& step) {
    // Probes go through the layers in order.
    std::vector<std::pair<size_t, size_t>> probed;  // layer, match
    for (size_t i = 0; i < matches.size(); ++i) {
        std::set<size_t> layers;
        for (const Unit& unit : units.equal(matches[i].later)) layers.insert(unit.layer);
        for (const size_t layer : layers) probed.emplace_back(layer, i);
    }
    std::sort(probed.begin(), probed.end());
    std::optional<LayerProbes> probes;
    std::vector<double> out(matches.size());
    Progress progress("measuring heads", probed.size(), "heads");
    for (const auto& [layer, i] : probed) {
        const Match& match = matches[i];
        const auto found = step.work->results_of_all(
            {kCost,
             {{"model", step.identity_before},
              {"replaced", key},
              {"layer", layer},
              {"unit", {match.later.layer, match.later.index}},
              {"former", {match.former.layer, match.former.index}}}},
            [&, at = layer] {
                if (!probes)
                    probes.emplace(model, probe_sequences(*step.calibration, kProbeTokens), step.threads);
                return Arrays{
                    {"divergence", {{1}, {static_cast<float>(probes->divergence(replaced(match), at))}}}};
            });
        out[i] += lazy::numbers(found.at("divergence"))[0];
        progress.advance(1);
    }
    progress.finish();
    return out;
}

}  // namespace refold
