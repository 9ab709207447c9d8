#include <algorithm>
#include <array>

#include "compress/compensation/layer_probes.h"
#include "compress/method/lazy.h"
#include "compress/narrowing/narrow_plan.h"
#include "compress/quantization/unquantized_grams.h"
#include "core/progress.h"
#include "model/materialize.h"

namespace refold {
namespace {

using Doubles = std::vector<double>;

constexpr Computation kCosts{"narrow costs", 1};
constexpr int64_t kProbeTokens = 1024;

// The parts that a module loses for the probe, and the most that may go.
std::array<int64_t, 2> counts_of(const Narrowable& m) {
    if (m.is_attention()) return {1, m.parts};
    return {std::max<int64_t>(1, m.parts / 8), std::max<int64_t>(1, m.parts * 3 / 4)};
}

class Costs {
public:
    Costs(const Model& model, const std::vector<Narrowable>& modules, const Step& step)
        : model_(model), step_(step) {
        std::set<UnquantizedGrams::Place> places;
        for (const Narrowable& m : modules) places.emplace(m.layer, m.module->inner);
        grams_.emplace(model, Measurement{*step.work, *step.calibration, step.identity_before, step.threads},
                       places);
    }

    Doubles of(const Narrowable& m) {
        const auto found = step_.work->results_of_all(
            {kCosts,
             {{"model", step_.identity_before},
              {"layer", m.layer},
              {"slot", slot_name(m.module->matrix)},
              {"select", step_.options.text("select")}}},
            [&] {
                const Doubles costs = measured(m);
                return Arrays{
                    {"costs", {{static_cast<int64_t>(costs.size())}, {costs.begin(), costs.end()}}}};
            });
        return lazy::numbers(found.at("costs"));
    }

private:
    Doubles measured(const Narrowable& m) {
        const Slot slot = m.module->matrix;
        const std::vector<float> weights =
            materialize(model_, model_.topology.at(m.layer, slot), slot, m.layer);
        const Doubles gram = grams_->at({m.layer, m.module->inner});
        const auto both = removals(step_.options.text("select"),
                                   {gram, weights, m.parts * m.width, m.parts, m.width}, counts_of(m));
        const Removals& probe = both.front();
        if (!probes_)
            probes_.emplace(model_, probe_sequences(*step_.calibration, kProbeTokens), step_.threads);
        const double divergence = probes_->divergence(disturbed(m, probe), m.layer);
        const double unit = divergence / std::max(probe.errors.back(), 1e-30);
        Doubles out = {0};
        for (const double error : both.back().errors) out.push_back(error * unit);
        return out;
    }

    Model disturbed(const Narrowable& m, const Removals& removed) {
        std::vector<Requantized> ignored;
        Model out = without_parts(model_, m, removed.parts, ignored);
        const auto inputs = static_cast<int64_t>(removed.inputs.size());
        if (inputs == 0) return out;
        const auto map = free_map(out, m.layer, m.module->matrix);
        const Tensor weights = lazy::computed(DType::F32, {inputs, model_.config.n_embd},
                                              [values = removed.weights] { return values; });
        return map->install(out, weights, ignored);
    }

    const Model& model_;
    const Step& step_;
    std::optional<UnquantizedGrams> grams_;
    std::optional<LayerProbes> probes_;
};

}  // namespace

RemovalCosts removal_costs(const Model& model, const std::vector<Narrowable>& modules, const Step& step) {
    Costs costs(model, modules, step);
    RemovalCosts out;
    Progress progress("measuring modules", modules.size(), "modules");
    for (const Narrowable& m : modules) {
        out.push_back(costs.of(m));
        progress.advance(1);
    }
    progress.finish();
    return out;
}

std::vector<Removals> removals(const std::string& select, const SurgeonMap& map,
                               std::span<const int64_t> counts) {
    return select == "obs" ? remove_parts(map, counts) : remove_small_parts(map, counts);
}

}  // namespace refold
