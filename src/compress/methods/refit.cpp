#include "compress/methods/refit.h"

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "compress/aligned.h"
#include "compress/feedback_rounding.h"
#include "compress/free_map.h"
#include "compress/lazy.h"
#include "compress/norm_gain.h"
#include "compress/refit_rows.h"
#include "compress/selection.h"
#include "compress/work.h"
#include "core/error.h"
#include "core/progress.h"
#include "linalg/least_squares.h"

namespace refold {
namespace {

using Floats = std::vector<float>;
using nlohmann::json;

bool describes(const Family& family, Slot slot) {
    return std::any_of(family.position_slots.begin(), family.position_slots.end(),
                       [&](const SlotDescription& d) { return d.slot == slot; });
}

class Refit {
public:
    Refit(const Model& model, Step& step)
        : model_(model),
          step_(step),
          slots_(parse_slots(step.options.text("slots"), *model.family)),
          layers_(parse_layers(step.options.text("layers"), model.topology.positions.size())) {
        for (const Slot slot : slots_) {
            if (slot != Slot::attn_o && slot != Slot::ffn_down)
                fail(ErrorCode::usage, "refit", "slots are attn.o and ffn.down, got {}", slot_name(slot));
        }
        if (model.topology.positions.size() != step.original.topology.positions.size())
            fail(ErrorCode::unsupported, "refit", "the number of layers is not the original's");
    }

    Model run() {
        const size_t positions = model_.topology.positions.size();
        size_t first = 0;
        while (first < positions && is_unchanged(step_.original, model_, first)) ++first;
        if (first == positions) step_.report.lines.push_back("nothing has changed: nothing to refit");
        Progress progress("refit", positions, "layers");
        for (size_t p = 0; p < positions && first < positions; ++p) {
            if (p >= first && std::binary_search(layers_.begin(), layers_.end(), p)) {
                for (const OutputMap& module : kOutputMaps) {
                    solve(p, module);
                    solve_gain(p, module);
                }
            }
            pending_ = p + 1;
            progress.advance(1);
        }
        progress.finish();
        model_.drop_unreferenced();
        return finish();
    }

private:
    bool wanted(Slot slot) const { return std::find(slots_.begin(), slots_.end(), slot) != slots_.end(); }

    bool with_bias(size_t p, const OutputMap& module) const {
        const std::string& option = step_.options.text("bias");
        if (option == "no") return false;
        return model_.topology.has(p, module.bias) || describes(*model_.family, module.bias);
    }

    void solve(size_t p, const OutputMap& module) {
        if (!wanted(module.matrix) || !model_.topology.has(p, module.matrix)) return;
        const auto map = free_map(model_, p, module.matrix);
        if (!map) {
            left_.push_back(fmt::format("{} {}", p, slot_name(module.matrix)));
            return;
        }
        const bool bias = with_bias(p, module);
        const DType type = solved_type(*map);
        if (step_.dry_run()) {
            install(p, module, *map, lazy::constant(type, {map->inputs, map->outputs}, 0),
                    bias ? std::optional(lazy::constant(DType::F32, {map->outputs}, 0)) : std::nullopt);
            return;
        }
        const std::string what =
            fmt::format("refit v4 {} {} {}", step_.identity, p, slot_name(module.matrix));
        const auto solved =
            step_.work->results_of_all(what, [&] { return compute(p, module, *map, bias, type); });
        const auto figures = lazy::floats(solved.at("figures"), nullptr);
        // Neighbouring layers want similar ridges: the search for the next one begins here.
        if (std::isfinite(figures[0])) ridges_[module.matrix] = static_cast<double>(figures[0]);
        details_.push_back({{"position", p},
                            {"slot", slot_name(module.matrix)},
                            {"free", map->what},
                            {"ridge", figures[0]},
                            {"error_before", figures[1]},
                            {"error_after", figures[2]}});
        install(p, module, *map, as_type(solved.at("weights"), type),
                bias ? std::optional(solved.at("bias")) : std::nullopt);
    }

    // `same`: what the map had, so that a quantised model stays as small as it is.
    DType solved_type(const FreeMap& map) const {
        const std::string& option = step_.options.text("type");
        const DType first = model_.tensor(map.tensors.front()).type;
        const bool alike = std::all_of(map.tensors.begin(), map.tensors.end(), [&](const std::string& name) {
            return model_.tensor(name).type == first;
        });
        if (option == "same" && alike && map.inputs % block_elements(first) == 0) return first;
        return computed_type(option, model_, map.tensors);
    }

    AlignedStreams& streams() {
        if (!streams_) streams_.emplace(step_.original, model_, *step_.calibration, step_.threads);
        for (; advanced_ < pending_; ++advanced_) streams_->advance(model_, advanced_);
        return *streams_;
    }

    Arrays compute(size_t p, const OutputMap& module, const FreeMap& map, bool bias, DType type) {
        const MapRows rows(model_, p, module, map, bias);
        LeastSquares fit(rows.inputs(), map.outputs), held_out(rows.inputs(), map.outputs);
        visit(p, module, {module.inner},
              [&](const AlignedStreams::Rows& seen) { rows.add(seen, seen.held_out ? held_out : fit); });
        fit.sum_over_processes();
        held_out.sum_over_processes();
        const Floats prior = rows.prior();
        Ridged solved = solved_with(fit, held_out, prior, ridges_[module.matrix]);
        if (!is_float(type)) {
            solved.weights =
                rounded_with_feedback(solved.weights, {fit.gram(), fit.inputs(), map.inputs}, type);
            solved.error_after = held_out.error(solved.weights);
        }
        const auto in = static_cast<size_t>(map.inputs), stride = static_cast<size_t>(rows.inputs());
        Array weights{{map.inputs, map.outputs}, {}}, offsets{{map.outputs}, {}};
        for (size_t at = 0; at < solved.weights.size(); at += stride) {
            const float* row = solved.weights.data() + at;
            weights.values.insert(weights.values.end(), row, row + in);
            if (bias) offsets.values.push_back(row[in]);
        }
        Arrays out = {{"weights", std::move(weights)},
                      {"figures",
                       {{3},
                        {static_cast<float>(solved.ridge), static_cast<float>(solved.error_before),
                         static_cast<float>(solved.error_after)}}}};
        if (bias) out["bias"] = std::move(offsets);
        return out;
    }

    // Both models over the text at a position, with what rows of the map and of the gain need.
    void visit(size_t p, const OutputMap& module, std::vector<Tap> taps,
               const std::function<void(const AlignedStreams::Rows&)>& see) {
        // The same for both modules of the position.
        std::vector<Tap> of_original = {Tap::ffn_output};
        for (const OutputMap& m : kOutputMaps)
            if (model_.topology.has(p, m.post_norm)) of_original.push_back(m.projected);
        // The attention's equations need nothing of the FFN, where it comes after the attention.
        const bool half = module.matrix == Slot::attn_o && !model_.config.parallel_residual;
        for (const Tap tap : {module.projected, module.output, half ? Tap::residual : Tap::ffn_output})
            taps.push_back(tap);
        streams().visit(model_, p, of_original, taps, see, half);
    }

    // The norm behind a map decides how much the module adds, whatever the map: its gain is solved with the
    // map as it is now.
    void solve_gain(size_t p, const OutputMap& module) {
        const Slot slot = module.post_norm;
        if (!wanted(module.matrix) || !model_.topology.has(p, slot) || step_.options.text("gain") == "no")
            return;
        if (step_.dry_run()) {
            install_vector(p, slot, lazy::constant(DType::F32, {model_.config.n_embd}, 1));
            return;
        }
        const std::string what = fmt::format("refit gain v1 {} {} {}", step_.identity, p, slot_name(slot));
        const auto solved = step_.work->results_of_all(what, [&] { return compute_gain(p, module); });
        const auto figures = lazy::floats(solved.at("figures"), nullptr);
        gains_.push_back({{"position", p},
                          {"slot", slot_name(slot)},
                          {"ridge", figures[0]},
                          {"error_before", figures[1]},
                          {"error_after", figures[2]}});
        install_vector(p, slot, solved.at("gain"));
    }

    Arrays compute_gain(size_t p, const OutputMap& module) {
        const int64_t width = model_.config.n_embd;
        const Floats prior =
            materialise(model_, model_.topology.at(p, module.post_norm), module.post_norm, p);
        GainSquares fit(width), held_out(width);
        visit(p, module, {}, [&](const AlignedStreams::Rows& seen) {
            add_gain_rows(module, model_.config.norm_eps, seen, seen.held_out ? held_out : fit);
        });
        fit.sum_over_processes();
        held_out.sum_over_processes();
        RidgedGain solved = refold::solve_gain(fit, held_out, prior);
        return {{"gain", {{width}, std::move(solved.gain)}},
                {"figures",
                 {{3},
                  {static_cast<float>(solved.ridge), static_cast<float>(solved.error_before),
                   static_cast<float>(solved.error_after)}}}};
    }

    Ridged solved_with(const LeastSquares& fit, const LeastSquares& held_out, const Floats& prior,
                       double start) const {
        const std::string& option = step_.options.text("ridge");
        if (option == "auto") return solve_with_held_out(fit, held_out, prior, start);
        Ridged out{std::stod(option), held_out.error(prior), 0, {}};
        out.error_after = held_out.error(fit.solve(out.ridge, prior));
        LeastSquares all = fit;
        all.add(held_out);
        out.weights = all.solve(out.ridge, prior);
        return out;
    }

    void install(size_t p, const OutputMap& module, const FreeMap& map, const Tensor& weights,
                 const std::optional<Tensor>& bias) {
        model_ = map.install(model_, weights, requantised_);
        if (bias) install_vector(p, module.bias, *bias);
    }

    void install_vector(size_t p, Slot slot, const Tensor& vector) {
        const std::string name = fmt::format("blk.{}.{}.refit", p, slot_name(slot));
        const auto& described = describes(*model_.family, slot) ? tensor_name(*model_.family, slot, p) : name;
        // Another position may have the vector as well.
        const bool taken = model_.tensors.contains(described) && is_read_elsewhere(model_, described, p);
        model_.tensors[taken ? name : described] = vector;
        model_.topology.positions[p][slot] = Dense{taken ? name : described};
    }

    Model finish() {
        json details = {{"solved", details_}, {"gains", gains_}, {"shared", left_}};
        auto& lines = step_.report.lines;
        for (const auto& [solved, what] :
             {std::pair(&details_, "linear maps"), std::pair(&gains_, "gains of norms")}) {
            double before = 0, after = 0;
            for (const json& d : *solved) {
                before += d["error_before"].get<double>();
                after += d["error_after"].get<double>();
            }
            if (!solved->empty())
                lines.push_back(fmt::format("{} {} solved; error on held-out text {:.3g} -> {:.3g}",
                                            solved->size(), what, before, after));
        }
        if (!left_.empty())
            lines.push_back(fmt::format("left as they are, being shared: {}", fmt::join(left_, ", ")));
        report_requantised(requantised_, "", step_.report, details);
        step_.report.details = details.dump();
        return std::move(model_);
    }

    Model model_;
    Step& step_;
    std::vector<Slot> slots_;
    std::vector<size_t> layers_;
    std::optional<AlignedStreams> streams_;
    size_t pending_ = 0, advanced_ = 0;  // positions in their final form; those that the streams are behind
    std::map<Slot, double> ridges_ = {{Slot::attn_o, 1e-2}, {Slot::ffn_down, 1e-2}};
    std::vector<Requantised> requantised_;
    std::vector<json> details_, gains_;
    std::vector<std::string> left_;
};

Model apply(const Model& model, Step& step) {
    const std::string& ridge = step.options.text("ridge");
    if (ridge != "auto") {
        char* end = nullptr;
        const double value = std::strtod(ridge.c_str(), &end);
        if (ridge.empty() || *end != '\0' || !std::isfinite(value) || value < 0)
            fail(ErrorCode::usage, "refit", "ridge must be auto or a number from 0, got '{}'", ridge);
    }
    return Refit(model, step).run();
}

constexpr const char* kDocumentation = R"(
Any step before this one leaves linear maps that are still free: the output projection of each attention (`attn.o`) and the
down projection of each FFN (`ffn.down`). They are solved anew in closed form, without gradients, from layer to layer: W
minimises over the calibration text

    sum over tokens of |residual(model) + W a - residual(original)|^2  +  ridge * m * |W - present W|^2

where `a` is what the module computes in the model as it has become so far (its earlier layers already refitted), the target
is the original's residual stream behind the same module, and m is the mean of the diagonal of sum a a^T. Errors of earlier
layers are thus corrected by later ones. `ridge=auto` chooses the ridge for each map on the part of the calibration text
that is not solved with (every eighth sequence), starting from 0.01; the present weights stay where nothing is better.

Solved is what no other layer uses: of shared heads those that are the layer's own, of a low-rank weight or a LoRA the
factor behind, of `tensorllm` the output projection's part of the core (where R3 is the number of matrices). What is shared keeps its weights (the report lists it). `bias=auto` solves a bias along where the
architecture has a place for one. Layers before the first one that a step has changed are left alone.

Behind a norm (Gemma 2 and 3: norms after the modules) the norm's divisor is taken from the original model, which makes the
problem linear again; channels that the norm suppresses keep their weights. How much such a module adds is the norm's, whatever
the map: then the norm's gain is solved, channel by channel, for what the solved map gives (`gain=auto`).

Needs calibration text (`--calib FILE --calib-tokens N`): at least a few times as many tokens as the FFN is wide. Memory is
O(width^2) for one layer, the residual streams of both models, and one layer of weights of each. Solved weights are stored
in the type that they had (`type=same`; 16 bits where their rows are not whole blocks of it). To a quantised type they are
rounded block by block, each correcting for the ones before (as GPTQ does), and later layers are solved with them as stored. An interrupted run finds its solved layers again.
)";

}  // namespace

const Method kRefit = {
    "refit",
    "repair: output projections solved anew by least squares against the original model",
    "refold; ridge regression towards the present weights, layer by layer",
    kDocumentation + 1,
    {
        slots_option("attn.o,ffn.down", "which maps are solved: attn.o, ffn.down"),
        layers_option(),
        {.name = "ridge", .fallback = "auto", .help = "auto: by held-out text; or a number, such as 0.01"},
        {.name = "bias",
         .kind = OptionSpec::Kind::choice,
         .fallback = "auto",
         .help = "solve a bias along where the architecture has one",
         .choices = {"auto", "no"}},
        {.name = "gain",
         .kind = OptionSpec::Kind::choice,
         .fallback = "auto",
         .help = "solve the gains of norms behind the maps along, where the architecture has them",
         .choices = {"auto", "no"}},
        {.name = "type",
         .kind = OptionSpec::Kind::choice,
         .fallback = "same",
         .help = "type of solved tensors",
         .choices = {"same", "f32", "f16", "bf16"}},
    },
    apply,
    [](const Options&) { return true; },
};

}  // namespace refold
