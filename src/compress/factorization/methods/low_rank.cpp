// Matrices as low-rank factors in closed form, solved layer by layer for the inputs that they have; bases
// shared by neighbouring layers.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "compress/factorization/factoring.h"
#include "compress/factorization/rank_plan.h"
#include "compress/factorization/wanted_maps.h"
#include "compress/method/lazy.h"
#include "compress/method/selection.h"
#include "core/error.h"
#include "core/progress.h"
#include "linalg/reduced_rank.h"

namespace refold::low_rank_method {
namespace {

using nlohmann::json;
using Tensors = std::map<std::string, Tensor>;

constexpr Computation kFactors{"low_rank", 1}, kBasis{"low_rank basis", 1};

// The slots whose bases layers share: those asked for, or all that read the residual stream.
std::vector<Slot> shared_slots(const Options& options, const Model& model, const std::vector<Slot>& slots) {
    const std::string& given = options.text("share_slots");
    std::vector<Slot> out = given == "auto" ? slots : parse_slots(given, *model.family);
    if (given == "auto") std::erase_if(out, [](Slot slot) { return output_map_after(*input_tap(slot)); });
    return out;
}

class LowRankFactors {
public:
    LowRankFactors(const Model& model, Step& step)
        : model_(model),
          step_(step),
          slots_(parse_slots(step.options.text("slots"), *model.family)),
          wanted_(step, parse_ridge(step.options.text("ridge"), "low_rank"),
                  step.options.text("stream") == "both") {
        check_observable("low_rank", model, step, slots_);
    }

    Model run() {
        const Model before = model_;
        plan();
        if (!step_.dry_run()) solve_bases();
        const size_t layers = model_.topology.layers.size();
        Progress progress("low_rank", layers, "layers");
        for (size_t p = 0; p < layers; ++p) {
            for (const Tap tap : kInputTaps) factor(p, tap);
            wanted_.done(p);
            progress.advance(1);
        }
        progress.finish();
        model_.drop_unreferenced();
        report(before);
        return std::move(model_);
    }

private:
    void plan() {
        const Options& options = step_.options;
        const bool global = options.text("allocation") == "global";
        const int64_t rank = options.integer("rank");
        const double part = options.number("parameters");
        if (global && rank > 0)
            fail(ErrorCode::usage, "low_rank", "allocation=global divides `parameters`: leave rank out");
        const auto share = static_cast<size_t>(options.integer("share"));
        maps_ = factored_maps(model_, parse_layers(options.text("layers"), model_.topology.layers.size()),
                              slots_, shared_slots(options, model_, slots_), share);
        if (maps_.empty())
            fail(ErrorCode::usage, "low_rank", "layers {} have no {}", options.text("layers"),
                 factoring::slots_text(slots_));
        for (FactoredMap& map : maps_) {
            if (rank > 0)
                map.rank = std::min(rank, map.full());
            else if (part < 1)
                map.rank = map.rank_for(part);
        }
        const bool any_shared = std::any_of(maps_.begin(), maps_.end(), [](const FactoredMap& map) {
            return map.layers.size() > 1 && map.rank > 0;
        });
        if (step_.dry_run()) {
            if (!global || part >= 1) return;
            details_["placeholders"] = true;
            step_.report.lines.emplace_back(
                "dry run: ranks are decided by calibration text; here all maps keep the same part");
            return;
        }
        global_ = global && part < 1;
        if (global_ || any_shared)
            grams_.emplace(before_,
                           Measurement{*step_.work, *step_.calibration, step_.identity_before, step_.threads},
                           places_of(maps_));
        if (global_) allocate_ranks(maps_, part, before_, *grams_, step_);
    }

    // Of maps that several layers share, V is the same for all: it is solved in advance, with the inputs that
    // they have in the model before this step.
    void solve_bases() {
        for (const FactoredMap& map : maps_) {
            if (map.layers.size() == 1 || map.rank == 0) continue;
            bases_[&map] = step_.work->results_of_all(
                {kBasis,
                 {{"model", step_.identity_before},
                  {"slot", slot_name(map.slot)},
                  {"layers", map.layers},
                  {"rank", map.rank}}},
                [&] {
                    LowRankMap low =
                        reduce_rank(gram_of(map, *grams_), map.shape.in, weights_of(before_, map), map.rank);
                    return Arrays{{"v", {{map.shape.in, map.rank}, std::move(low.v)}}};
                });
        }
    }

    std::vector<const FactoredMap*> maps_at(size_t p, Tap tap) const {
        std::vector<const FactoredMap*> out;
        for (const FactoredMap& map : maps_) {
            const bool here = std::find(map.layers.begin(), map.layers.end(), p) != map.layers.end();
            if (here && map.rank > 0 && input_tap(map.slot) == tap) out.push_back(&map);
        }
        return out;
    }

    void factor(size_t p, Tap tap) {
        const auto maps = maps_at(p, tap);
        if (maps.empty()) return;
        Tensors found;
        if (!step_.dry_run())
            found = step_.work->results_of_all(
                {kFactors, {{"step", step_.identity}, {"layer", p}, {"inputs", tap_name(tap)}}},
                [&] { return factors(p, tap, maps); });
        // Neighbouring layers have similar best ridges. As kept, so that a run that resumes goes on alike.
        if (!step_.dry_run()) wanted_.set_ridge(maps.front()->slot, lazy::numbers(found.at("ridge")).front());
        for (const FactoredMap* map : maps) install(p, *map, found);
    }

    static std::string name_in(Slot slot, const char* part) {
        return fmt::format("{}.{}", slot_name(slot), part);
    }

    Arrays factors(size_t p, Tap tap, const std::vector<const FactoredMap*>& maps) {
        std::vector<Slot> slots;
        std::vector<float> weights;
        for (const FactoredMap* map : maps) {
            slots.push_back(map->slot);
            const auto own = factoring::weights_of(model_, p, map->slot);
            weights.insert(weights.end(), own.begin(), own.end());
        }
        const WantedMap wanted = wanted_.at(model_, p, tap, slots, std::move(weights));
        Arrays out = {{"ridge", {{1}, {static_cast<float>(wanted.ridge)}}}};
        size_t at = 0;
        for (const FactoredMap* map : maps) {
            const auto [in, outputs] = map->shape;
            const auto count = static_cast<size_t>(in * outputs);
            const auto rows = std::span(wanted.weights).subspan(at, count);
            at += count;
            LowRankMap low;
            if (const auto basis = bases_.find(map); basis != bases_.end()) {
                low.v = lazy::floats(basis->second.at("v"), nullptr);
                low.u = factor_for(wanted.gram, in, rows, low.v);
            } else {
                low = reduce_rank(wanted.gram, in, rows, map->rank);
            }
            std::vector<float> left = product_of(low, in);
            for (size_t i = 0; i < left.size(); ++i) left[i] -= rows[i];
            const double lost =
                output_energy(wanted.gram, in, left) / std::max(output_energy(wanted.gram, in, rows), 1e-30);
            const auto rank = static_cast<int64_t>(low.v.size()) / in;
            out[name_in(map->slot, "u")] = {{rank, outputs}, std::move(low.u)};
            out[name_in(map->slot, "lost")] = {{1}, {static_cast<float>(lost)}};
            if (map->layers.size() == 1) out[name_in(map->slot, "v")] = {{in, rank}, std::move(low.v)};
        }
        return out;
    }

    void install(size_t p, const FactoredMap& map, const Tensors& found) {
        const std::string source = std::get<Dense>(before_.topology.at(p, map.slot)).tensor,
                          first = std::get<Dense>(before_.topology.at(map.layers.front(), map.slot)).tensor;
        const DType type = computed_type(step_.options.text("type"), before_, {source});
        const std::string u = stem(source) + ".u", v = stem(first) + ".v";
        if (step_.dry_run()) {
            const int64_t rank = map.rank;
            model_.tensors[u] = lazy::constant(type, {rank, map.shape.out}, 0);
            model_.tensors[v] = lazy::constant(type, {map.shape.in, rank}, 0);
        } else {
            const auto basis = bases_.find(&map);
            const Tensor& own =
                basis == bases_.end() ? found.at(name_in(map.slot, "v")) : basis->second.at("v");
            model_.tensors[u] = as_type(found.at(name_in(map.slot, "u")), type);
            if (p == map.layers.front()) model_.tensors[v] = as_type(own, type);
            lost_.push_back({{"layer", p},
                             {"slot", slot_name(map.slot)},
                             {"lost", lazy::numbers(found.at(name_in(map.slot, "lost"))).front()}});
        }
        model_.topology.layers[p][map.slot] = LowRank{u, v};
    }

    void report(const Model& before) {
        auto& lines = step_.report.lines;
        std::vector<json> maps;
        std::map<std::string, std::vector<size_t>> by_rank;
        for (const FactoredMap& map : maps_) {
            maps.push_back({{"layers", map.layers},
                            {"slot", slot_name(map.slot)},
                            {"rank", map.rank},
                            {"full_rank", map.full()},
                            {"parameters_before", map.dense()},
                            {"parameters_after", map.rank > 0 ? map.factors(map.rank) : map.dense()}});
            auto& layers =
                by_rank[map.rank == 0 ? fmt::format("{} as it is", slot_name(map.slot))
                                      : fmt::format("{} of rank {:4} of {}{}", slot_name(map.slot), map.rank,
                                                    map.full(), map.layers.size() > 1 ? ", shared" : "")];
            layers.insert(layers.end(), map.layers.begin(), map.layers.end());
        }
        for (auto& [what, layers] : by_rank) {
            std::sort(layers.begin(), layers.end());
            lines.push_back(fmt::format("{} in layers {}", what, layers_text(layers)));
        }
        double lost = 0;
        for (const json& entry : lost_)
            lost += entry["lost"].get<double>() / static_cast<double>(lost_.size());
        if (!lost_.empty())
            lines.push_back(fmt::format("outputs lose {:.2f} % of their energy in the mean", 100 * lost));
        lines.push_back("saves " + saving_text(before, model_));
        details_["maps"] = maps;
        details_["solved"] = lost_;
        step_.report.details = details_.dump();
    }

    Model model_;
    const Model before_ = model_;
    Step& step_;
    std::vector<Slot> slots_;
    WantedMaps wanted_;
    std::vector<FactoredMap> maps_;
    bool global_ = false;
    std::optional<UnquantizedGrams> grams_;
    std::map<const FactoredMap*, Tensors> bases_;
    json details_ = json::object();
    std::vector<json> lost_;
};

Model apply(const Model& model, Step& step) { return LowRankFactors(model, step).run(); }

constexpr const char* kDocumentation = R"(
Each chosen matrix W becomes a product U V of two factors, solved in closed form, layer by layer, on the inputs x' that it has in the
model as it is by then:

1. `stream=both`: W is first solved for what the original does, sum of |W' x' - y|^2, as in AA-SVD (arXiv 2604.02119). For maps that
   read the residual stream, y = W x with the original's inputs x. For those that end a module (`attn.o`, `ffn.down`), W' makes the
   residual stream after the module the original's, as in `refit`. So later layers make up for the errors of earlier ones.
   `stream=model` leaves this out: W' = W (SVD-LLM, arXiv 2403.07378).
2. U V is the map of its rank that is nearest to W' on these inputs, sum of |W' x' - U V x'|^2: with S S^T = sum of x' x'^T, the
   truncated singular value decomposition of W' S, times S^-1.

**Rank.** Of every map so that `parameters` of its numbers stay, or `rank`. A square matrix halves its rank before its factors are smaller
than itself. `allocation=global`: the ranks with which all maps together lose least; maps may also stay as they are. What is lost is
measured as in `narrow`: the energy of the outputs beyond the rank, in a unit that is measured for each map (the divergence of the next
token when the map alone has four fifths of its numbers, or loses a hundredth of that energy, on 1024 tokens).

**Bases shared by neighbouring layers** (`share=2` to `5`; Basis Sharing, arXiv 2410.03765). The matrices of a slot in so many
layers, one below the other, have one V, stored once, and each layer a U of its own. V comes from one decomposition, with the sum
of the Gram matrices of the layers' inputs in the model before this step; each layer's U is then solved for this V on the layer's own
inputs. Rank is cheaper: one V for several layers. `share_slots=auto`: of all chosen slots except those that end a module, whose
inputs differ from layer to layer.

Small models, whose matrices need nearly all directions, lose much by factors, and factors solved on few tokens err far more than on
many (docs/quality.md).

Afterwards `refit` can solve the U of `attn.o` and `ffn.down` once more, with all factors in place. Matrices that layers share, shared
heads and factors are refused: do this step first. Needs calibration text (`--calib FILE --calib-tokens N`) with at least a few times as
many tokens as the FFN is wide; in memory are O(width^2) numbers for one layer, the residual streams of both models and the inputs of
one layer's modules. An interrupted run resumes after the maps that it had solved.
)";

}  // namespace

extern const Method method;
const Method method = {
    "low_rank",
    "matrices as low-rank factors for the inputs that they have, in closed form; bases shared by layers",
    "AA-SVD (arXiv 2604.02119); SVD-LLM (2403.07378), section 3.1; Basis Sharing (2410.03765), section 3",
    kDocumentation + 1,
    {
        slots_option("all", "which matrices"),
        layers_option(),
        {"parameters", OptionSpec::Kind::number, "0.8", "part of the chosen matrices' parameters that stays",
         0.0, 1.0},
        {"rank", OptionSpec::Kind::integer, "0", "above 0: of every matrix, in place of parameters", 0,
         1 << 20},
        {.name = "allocation",
         .kind = OptionSpec::Kind::choice,
         .fallback = "uniform",
         .help = "how much of which matrix: the same part of each, or measured over the model",
         .choices = {"uniform", "global"}},
        {"share", OptionSpec::Kind::integer, "1", "so many neighbouring layers share a basis", 1, 5},
        {.name = "share_slots",
         .fallback = "auto",
         .help = "of these slots; auto: of all but attn.o and ffn.down"},
        stream_option(),
        ridge_option(),
        type_option(),
    },
    apply,
    [](const Options&) { return true; },
};

}  // namespace refold::low_rank_method
