#include "compress/factorization/rank_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "compress/compensation/layer_probes.h"
#include "compress/factorization/factoring.h"
#include "compress/method/allocation.h"
#include "compress/method/lazy.h"
#include "compress/quantization/input_uses.h"
#include "core/error.h"
#include "core/progress.h"
#include "linalg/reduced_rank.h"

namespace refold {
namespace {

constexpr Computation kRankCosts{"low_rank costs", 1};
constexpr int64_t kRankProbeTokens = 1024;
constexpr double kProbedPart = 0.8;  // of the numbers
constexpr double kLeastLoss = 0.01;  // of the outputs' energy

Tensor as_tensor(std::vector<int64_t> shape, std::vector<float> values) {
    return lazy::computed(DType::F32, std::move(shape), [kept = std::move(values)] { return kept; });
}

double tail(const std::vector<double>& energies, int64_t rank) {
    const auto from = std::min(static_cast<size_t>(rank), energies.size());
    return std::accumulate(energies.begin() + static_cast<int64_t>(from), energies.end(), 0.0);
}

class RankCosts {
public:
    RankCosts(const Model& model, const UnquantizedGrams& grams, const Step& step)
        : model_(model), grams_(grams), step_(step) {}

    std::vector<double> energies(const FactoredMap& map) const {
        return output_energies(gram_of(map, grams_), map.shape.in, weights_of(model_, map));
    }

    // What a layer's map loses at a rank: the divergence that it causes alone, and the energy of its outputs.
    struct Probe {
        double divergence, energy;
    };
    // At the probed part of its numbers, or at a lower rank where that loses next to nothing. Layers have to
    // come in order.
    Probe probe(const FactoredMap& map, size_t layer) {
        FactoredMap alone = map;
        alone.layers = {layer};
        const std::vector<double> of_map = energies(alone);
        const double least = kLeastLoss * tail(of_map, 0);
        int64_t rank = alone.rank_for(kProbedPart);
        while (rank > 1 && tail(of_map, rank) < least) --rank;
        LowRankMap low = reduce_rank(gram_of(alone, grams_), map.shape.in, weights_of(model_, alone), rank);
        Model disturbed = model_;
        disturbed.tensors["probe.u"] = as_tensor({rank, map.shape.out}, std::move(low.u));
        disturbed.tensors["probe.v"] = as_tensor({map.shape.in, rank}, std::move(low.v));
        disturbed.topology.layers[layer][map.slot] = LowRank{"probe.u", "probe.v"};
        if (!probes_)
            probes_.emplace(model_, probe_sequences(*step_.calibration, kRankProbeTokens), step_.threads);
        return {probes_->divergence(disturbed, layer), tail(of_map, rank)};
    }

private:
    const Model& model_;
    const UnquantizedGrams& grams_;
    const Step& step_;
    std::optional<LayerProbes> probes_;
};

}  // namespace

int64_t FactoredMap::rank_for(double part) const {
    const double of_rank = static_cast<double>(factors(1));
    const auto most = static_cast<int64_t>(part * static_cast<double>(dense()) / of_rank + 1e-9);
    return std::clamp<int64_t>(most, 1, full());
}

std::vector<FactoredMap> factored_maps(const Model& model, const std::vector<size_t>& layers,
                                       const std::vector<Slot>& slots, const std::vector<Slot>& shared,
                                       size_t share) {
    std::vector<FactoredMap> out;
    for (const Slot slot : slots) {
        const bool may_share = std::find(shared.begin(), shared.end(), slot) != shared.end();
        std::optional<FactoredMap> open;
        for (const auto& group : factoring::groups_of(model, layers, {slot})) {
            if (group.size() > 1)
                fail(
                    ErrorCode::unsupported, "low_rank",
                    "{} {}: they use one matrix, whose factors would have to be solved for all of them - put "
                    "this step before the one that shares it, or leave the slot out",
                    factoring::place_text(group), slot_name(slot));
            const SlotShape shape = slot_shape(slot, model.config, group.front());
            const bool fits = open && open->layers.size() < (may_share ? share : 1) &&
                              open->shape.in == shape.in && open->shape.out == shape.out;
            if (!fits) {
                if (open) out.push_back(*open);
                open = FactoredMap{slot, {}, shape};
            }
            open->layers.push_back(group.front());
        }
        if (open) out.push_back(*open);
    }
    return out;
}

std::set<UnquantizedGrams::Place> places_of(const std::vector<FactoredMap>& maps) {
    std::set<UnquantizedGrams::Place> out;
    for (const FactoredMap& map : maps) {
        for (const size_t layer : map.layers) out.emplace(layer, *input_tap(map.slot));
    }
    return out;
}

std::vector<double> gram_of(const FactoredMap& map, const UnquantizedGrams& grams) {
    std::vector<double> out(static_cast<size_t>(map.shape.in * map.shape.in));
    for (const size_t layer : map.layers) {
        const auto gram = grams.at({layer, *input_tap(map.slot)});
        for (size_t i = 0; i < out.size(); ++i) out[i] += gram[i];
    }
    return out;
}

std::vector<float> weights_of(const Model& model, const FactoredMap& map) {
    std::vector<float> out;
    for (const size_t layer : map.layers) {
        const auto weights = factoring::weights_of(model, layer, map.slot);
        out.insert(out.end(), weights.begin(), weights.end());
    }
    return out;
}

void allocate_ranks(std::vector<FactoredMap>& maps, double part, const Model& model,
                    const UnquantizedGrams& grams, const Step& step) {
    const auto key = [&](const char* what, const FactoredMap& map, std::vector<size_t> layers) {
        return ResultKey{kRankCosts,
                         {{"model", step.identity_before},
                          {"what", what},
                          {"slot", slot_name(map.slot)},
                          {"layers", std::move(layers)},
                          {"shared", map.layers.size()}}};
    };
    RankCosts costs(model, grams, step);
    // By layer, as probes want it.
    std::vector<RankCosts::Probe> probes(maps.size());
    Progress progress("measuring maps", model.topology.layers.size(), "layers");
    for (size_t layer = 0; layer < model.topology.layers.size(); ++layer) {
        for (size_t i = 0; i < maps.size(); ++i) {
            const FactoredMap& map = maps[i];
            if (std::find(map.layers.begin(), map.layers.end(), layer) == map.layers.end()) continue;
            const auto found = step.work->results_of_all(key("probe", map, {layer}), [&] {
                const auto [divergence, energy] = costs.probe(map, layer);
                return Arrays{{"probe", {{2}, {static_cast<float>(divergence), static_cast<float>(energy)}}}};
            });
            const auto figures = lazy::numbers(found.at("probe"));
            probes[i].divergence += figures[0];
            probes[i].energy += figures[1];
        }
        progress.advance(1);
    }
    progress.finish();
    std::vector<AllocationItem> items;
    std::vector<std::vector<int64_t>> ranks;
    int64_t all = 0;
    for (size_t i = 0; i < maps.size(); ++i) {
        const FactoredMap& map = maps[i];
        const auto found = step.work->results_of_all(key("energies", map, map.layers), [&] {
            const auto energies = costs.energies(map);
            return Arrays{
                {"energies", {{static_cast<int64_t>(energies.size())}, {energies.begin(), energies.end()}}}};
        });
        const std::vector<double> energies = lazy::numbers(found.at("energies"));
        const double unit = probes[i].divergence / std::max(probes[i].energy, 1e-30);
        // The matrices as they are cost nothing but their numbers.
        AllocationItem& item = items.emplace_back(AllocationItem{{static_cast<uint64_t>(map.dense()), 0}});
        auto& of_item = ranks.emplace_back(std::vector<int64_t>{0});
        const int64_t by = map.full() >= 64 ? 8 : 1;
        for (int64_t rank = by; rank <= map.full() && map.factors(rank) < map.dense(); rank += by) {
            item.push_back({static_cast<uint64_t>(map.factors(rank)), unit * tail(energies, rank)});
            of_item.push_back(rank);
        }
        all += map.dense();
    }
    const auto budget = static_cast<uint64_t>(part * static_cast<double>(all));
    const auto found = allocate(items, budget);
    if (!found)
        fail(ErrorCode::usage, "low_rank", "parameters={}: the smallest ranks have {:.3f} of the numbers",
             part, static_cast<double>(smallest_allocation(items)) / static_cast<double>(all));
    for (size_t i = 0; i < maps.size(); ++i) maps[i].rank = ranks[i][found->chosen[i]];
}

}  // namespace refold
