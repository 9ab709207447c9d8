// Closed-form repair: the linear maps that end attention and FFN are solved anew, layer by layer, so that the
// residual stream is the original model's again.
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "calibrate/aligned_streams.h"
#include "compress/method/lazy.h"
#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "compress/method/work.h"
#include "compress/refit/free_map.h"
#include "compress/refit/norm_gain.h"
#include "compress/refit/output_solver.h"
#include "compress/refit/refit_rows.h"
#include "core/error.h"
#include "core/progress.h"
#include "linalg/least_squares.h"
#include "model/materialize.h"

namespace refold::refit_method {
namespace {

using Floats = std::vector<float>;
using nlohmann::json;

class Refit {
public:
    Refit(const Model& model, Step& step)
        : model_(model),
          step_(step),
          slots_(parse_slots(step.options.text("slots"), *model.family)),
          layers_(parse_layers(step.options.text("layers"), model.topology.layers.size())),
          solver_(step, parse_ridge(step.options.text("ridge"), "refit")) {
        for (const Slot slot : slots_) {
            if (slot != Slot::attn_o && slot != Slot::ffn_down)
                fail(ErrorCode::usage, "refit", "slots are attn.o and ffn.down, got {}", slot_name(slot));
        }
        if (model.topology.layers.size() != step.original.topology.layers.size())
            fail(ErrorCode::unsupported, "refit", "the number of layers is not the original's");
    }

    Model run() {
        const size_t layers = model_.topology.layers.size();
        bool changed = false;  // the residual stream, or what it has to become
        Progress progress("refit", layers, "layers");
        for (size_t p = 0; p < layers; ++p) {
            const bool wanted = std::binary_search(layers_.begin(), layers_.end(), p);
            changed = changed || !is_unchanged(step_.original, model_, p);
            for (const OutputMap& module : kOutputMaps) {
                changed = changed || solver_.leads_over_a_gap(model_, p, module);
                if (!changed || !wanted) continue;
                solve(p, module);
                solve_gain(p, module);
            }
            solver_.done(p);
            progress.advance(1);
        }
        if (!changed) {
            check_has_original(model_, step_, "refit");
            step_.report.lines.emplace_back("nothing has changed: nothing to refit");
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
        return has_bias(model_, p, module);
    }

    void solve(size_t p, const OutputMap& module) {
        if (!wanted(module.matrix) || !model_.topology.has(p, module.matrix)) return;
        const auto map = free_map(model_, p, module.matrix);
        if (!map) {
            left_.push_back(fmt::format("{} {}", p, slot_name(module.matrix)));
            return;
        }
        const bool bias = with_bias(p, module);
        const DType type = OutputSolver::solved_type(model_, *map, step_.options.text("type"), map->inputs);
        if (step_.dry_run()) {
            install(p, module, *map, lazy::constant(type, {map->inputs, map->outputs}, 0),
                    bias ? std::optional(lazy::constant(DType::F32, {map->outputs}, 0)) : std::nullopt);
            return;
        }
        const auto solved = step_.work->results_of_all(key_of(kMap, p, module.matrix), [&] {
            return OutputSolver::rounded(solver_.solve(model_, p, module, *map, bias), *map, type, bias);
        });
        const auto figures = lazy::floats(solved.at("figures"), nullptr);
        // Neighboring layers have similar best ridges.
        solver_.set_ridge(module.matrix, static_cast<double>(figures[0]));
        details_.push_back({{"layer", p},
                            {"slot", slot_name(module.matrix)},
                            {"free", map->what},
                            {"ridge", figures[0]},
                            {"error_before", figures[1]},
                            {"error_after", figures[2]}});
        install(p, module, *map, as_type(solved.at("weights"), type),
                bias ? std::optional(solved.at("bias")) : std::nullopt);
    }

    ResultKey key_of(const Computation& computation, size_t p, Slot slot) const {
        return {computation, {{"step", step_.identity}, {"layer", p}, {"slot", slot_name(slot)}}};
    }

    static constexpr Computation kMap{"refit", 7};

    // The norm after a map decides how much the module adds, whatever the map. Its gain is solved with the
    // present map.
    void solve_gain(size_t p, const OutputMap& module) {
        const Slot slot = module.post_norm;
        if (!wanted(module.matrix) || !model_.topology.has(p, slot) || step_.options.text("gain") == "no")
            return;
        if (step_.dry_run()) {
            install_vector(model_, p, slot, lazy::constant(DType::F32, {model_.config.n_embd}, 1));
            return;
        }
        const auto solved =
            step_.work->results_of_all(key_of(kGain, p, slot), [&] { return compute_gain(p, module); });
        const auto figures = lazy::floats(solved.at("figures"), nullptr);
        gains_.push_back({{"layer", p},
                          {"slot", slot_name(slot)},
                          {"ridge", figures[0]},
                          {"error_before", figures[1]},
                          {"error_after", figures[2]}});
        install_vector(model_, p, slot, solved.at("gain"));
    }

    static constexpr Computation kGain{"refit gain", 2};

    Arrays compute_gain(size_t p, const OutputMap& module) {
        RidgedGain solved = solver_.solve_gain(model_, p, module);
        return {{"gain", {{model_.config.n_embd}, std::move(solved.gain)}},
                {"figures",
                 {{3},
                  {static_cast<float>(solved.ridge), static_cast<float>(solved.error_before),
                   static_cast<float>(solved.error_after)}}}};
    }

    void install(size_t p, const OutputMap& module, const FreeMap& map, const Tensor& weights,
                 const std::optional<Tensor>& bias) {
        model_ = map.install(model_, weights, requantized_);
        if (bias) install_vector(model_, p, module.bias, *bias);
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
        report_requantized(requantized_, "", step_.report, details);
        step_.report.details = details.dump();
        return std::move(model_);
    }

    Model model_;
    Step& step_;
    std::vector<Slot> slots_;
    std::vector<size_t> layers_;
    OutputSolver solver_;
    std::vector<Requantized> requantized_;
    std::vector<json> details_, gains_;
    std::vector<std::string> left_;
};

Model apply(const Model& model, Step& step) { return Refit(model, step).run(); }

constexpr const char* kDocumentation = R"(
After any step, the output projections of the attention (`attn.o`) and the down projections of the FFN (`ffn.down`) can be
solved anew in closed form, without gradients, layer by layer. W minimizes over the calibration text

    sum over tokens of |residual(model) + W a - residual(original)|^2  +  ridge * m * |W - present W|^2

where `a` is the input of W in the present model, whose earlier layers are already refitted; the target is the original's
residual stream where the model's next module reads it; and m is the mean of the diagonal of sum a a^T. So later layers
correct the errors of earlier ones. Where modules or whole layers were left out after this module, the target is the stream
after them, so that the map before a gap does their work as well (ReplaceMe, Shopkhoev et al. 2025). `ridge=auto` chooses the ridge for each map on the held-out part of the calibration text (every eighth
sequence), starting from 0.01; the present weights stay where nothing is better.

Only weights that no other layer uses are solved: of shared heads the layer's own, of a low-rank weight or a LoRA the output
factor, of `tensorllm` the output projection's part of the core (when R3 is the number of matrices). Shared weights stay; the
report lists them. `bias=auto` also solves a bias where the architecture has one. Layers before the first one that a step has
changed stay as they are, but for a map before a gap.

With a norm after the module (Gemma 2 and 3), the norm's divisor is taken from the original model, which makes the problem
linear; channels that the norm suppresses keep their weights. The norm decides how much the module adds, whatever the map:
so its gain is solved next, channel by channel, with the solved map (`gain=auto`).

Needs calibration text (`--calib FILE --calib-tokens N`) with at least a few times as many tokens as the FFN is wide. In
memory are O(width^2) numbers for one layer, the residual streams of both models, and the weights of one layer of each.
Solved weights keep their type (`type=same`; 16 bits where rows are not whole blocks of it). In a quantized type they are
rounded column by column, each one correcting the errors of those before (GPTQ), and later layers are solved with the rounded
weights. An interrupted run resumes after the layers that it had solved.
)";

}  // namespace

extern const Method method;
const Method method = {
    "refit",
    "repair: output projections solved anew by least squares against the original model",
    "refold; ridge regression towards the present weights, layer by layer",
    kDocumentation + 1,
    {
        slots_option("attn.o,ffn.down", "which maps are solved: attn.o, ffn.down"),
        layers_option(),
        ridge_option(),
        bias_option(),
        {.name = "gain",
         .kind = OptionSpec::Kind::choice,
         .fallback = "auto",
         .help = "also solve the gains of norms after the maps, where the architecture has them",
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

}  // namespace refold::refit_method
