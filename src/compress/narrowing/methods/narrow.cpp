// Structured narrowing in closed form: channels of FFNs and KV groups go where the maps after them lose
// least, and these maps are solved anew, layer by layer.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "calibrate/aligned_streams.h"
#include "compress/method/lazy.h"
#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "compress/method/work.h"
#include "compress/narrowing/narrow_plan.h"
#include "core/error.h"
#include "core/progress.h"

namespace refold::narrow_method {
namespace {

using nlohmann::json;

NarrowGoal goal_of(const Options& options) {
    NarrowGoal goal{.ffn = options.number("ratio"), .multiple = options.integer("multiple")};
    if (const double stays = options.number("parameters"); stays < 1) goal.parameters = stays;
    const std::string& attention = options.text("attention");
    goal.attention.reset();
    if (attention == "auto") return goal;
    char* end = nullptr;
    const double value = std::strtod(attention.c_str(), &end);
    if (attention.empty() || *end != '\0' || !(value >= 0 && value <= 1))
        fail(ErrorCode::usage, "narrow", "attention must be auto or a number in [0, 1], got '{}'", attention);
    goal.attention = value;
    return goal;
}

class Narrow {
public:
    Narrow(const Model& model, Step& step)
        : model_(model), step_(step), solver_(step, parse_ridge(step.options.text("ridge"), "narrow")) {
        if (model.topology.layers.size() != step.original.topology.layers.size())
            fail(ErrorCode::unsupported, "narrow", "the number of layers is not the original's");
    }

    Model run() {
        const Model before = model_;
        plan();
        const size_t layers = model_.topology.layers.size();
        const bool nothing = std::all_of(removed_.begin(), removed_.end(), [](int64_t n) { return n == 0; });
        remove_whole_modules();
        Progress progress("narrow", layers, "layers");
        size_t at = 0;
        bool changed = false;  // the residual stream
        for (size_t p = 0; p < layers && !nothing; ++p) {
            changed = changed || !is_unchanged(step_.original, model_, p);
            for (const OutputMap& module : kOutputMaps) {
                int64_t removed = 0;
                const Narrowable* from = nullptr;
                if (at < modules_.size() && modules_[at].layer == p && modules_[at].module == &module) {
                    removed = removed_[at];
                    from = &modules_[at++];
                }
                changed = changed || removed > 0 || solver_.leads_over_a_gap(model_, p, module);
                if (changed) narrow(p, module, removed > 0 ? from : nullptr, removed);
            }
            solver_.done(p);
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
        NarrowGoal goal = goal_of(options);
        goal.added = added_biases();
        const bool global = options.text("allocation") == "global";
        if (!goal.attention && !global)
            fail(ErrorCode::usage, "narrow", "attention=auto needs allocation=global");
        modules_ =
            narrowable_modules(model_, parse_layers(options.text("layers"), model_.topology.layers.size()),
                               !goal.attention || *goal.attention > 0);
        check_goal(model_, modules_, goal);
        if (global && !step_.dry_run()) {
            removed_ = global_removals(model_, modules_, goal, removal_costs(model_, modules_, step_));
            return;
        }
        NarrowGoal even = goal;
        even.attention = goal.attention.value_or(0);
        removed_ = uniform_removals(model_, modules_, even);
        if (global) {
            details_["placeholders"] = true;
            step_.report.lines.emplace_back(
                "dry run: how much of which layer is decided by calibration text; here it is spread evenly");
        }
    }

    // Parameters of the biases that are solved and were not there; at most.
    int64_t added_biases() const {
        int64_t out = 0;
        for (size_t p = 0; p < model_.topology.layers.size(); ++p) {
            for (const OutputMap& module : kOutputMaps) {
                const bool added = model_.topology.has(p, module.matrix) && with_bias(p, module) &&
                                   !model_.topology.has(p, module.bias);
                out += added ? model_.config.n_embd : 0;
            }
        }
        return out;
    }

    bool with_bias(size_t p, const OutputMap& module) const {
        return step_.options.text("bias") != "no" && has_bias(model_, p, module);
    }

    ResultKey key_of(const Computation& computation, size_t p, Slot slot) const {
        return {computation, {{"step", step_.identity}, {"layer", p}, {"slot", slot_name(slot)}}};
    }

    static constexpr Computation kMap{"narrow", 2}, kGain{"narrow gain", 2};

    // First of all, so that the maps before them are solved for what comes after them.
    void remove_whole_modules() {
        for (size_t i = 0; i < modules_.size(); ++i) {
            const Narrowable& module = modules_[i];
            if (removed_[i] != module.parts) continue;
            std::vector<int64_t> all(static_cast<size_t>(module.parts));
            std::iota(all.begin(), all.end(), int64_t{0});
            model_ = without_parts(model_, module, all, requantized_);
            note(module.layer, *module.module, &module, all, {});
        }
    }

    // `from`: the module that loses parts; null: its map is solved as it is.
    void narrow(size_t p, const OutputMap& module, const Narrowable* from, int64_t removed) {
        if (!model_.topology.has(p, module.matrix)) return;
        auto map = free_map(model_, p, module.matrix);
        if (!map) return;
        const bool bias = with_bias(p, module);
        map->inputs -= from != nullptr ? removed * from->width : 0;
        const DType type = OutputSolver::solved_type(model_, *map, "same", map->inputs);
        std::map<std::string, Tensor> found;
        if (step_.dry_run()) {
            found = placeholders(*map, type, removed);
        } else {
            found = step_.work->results_of_all(key_of(kMap, p, module.matrix),
                                               [&] { return solved(p, module, *map, from, removed, type); });
        }
        std::vector<int64_t> gone;
        if (from != nullptr) {
            for (const double part : lazy::numbers(found.at("gone"))) gone.push_back(std::llround(part));
            std::vector<Requantized> replaced;
            model_ = without_parts(model_, *from, gone, replaced);
            map = free_map(model_, p, module.matrix);
        }
        model_ = map->install(model_, as_type(found.at("weights"), type), requantized_);
        if (bias) install_vector(model_, p, module.bias, found.at("bias"));
        const auto figures = lazy::numbers(found.at("figures"));
        solver_.set_ridge(module.matrix, figures[0]);
        note(p, module, from, gone, figures);
        solve_gain(p, module);
    }

    std::map<std::string, Tensor> placeholders(const FreeMap& map, DType type, int64_t removed) const {
        std::vector<float> last;
        for (int64_t i = 0; i < removed; ++i) last.push_back(static_cast<float>(i));
        return {{"weights", lazy::constant(type, {map.inputs, map.outputs}, 0)},
                {"bias", lazy::constant(DType::F32, {map.outputs}, 0)},
                {"gone", lazy::computed(DType::F32, {removed}, [last] { return last; })},
                {"figures", lazy::constant(DType::F32, {3}, 0)}};
    }

    Arrays solved(size_t p, const OutputMap& module, const FreeMap& after, const Narrowable* from,
                  int64_t removed, DType type) {
        const bool bias = with_bias(p, module);
        const auto before = free_map(model_, p, module.matrix);
        OutputSolver::Equations equations = solver_.equations(model_, p, module, *before, bias);
        std::vector<float> gone;
        if (from != nullptr) {
            LeastSquares all = equations.fit;
            all.add(equations.held_out);
            SurgeonMap map{all.gram(), {}, all.inputs(), from->parts, from->width};
            const std::vector<float> target = all.solve(map.ridge, equations.prior);
            map.weights = target;
            const Removals out = removals(step_.options.text("select"), map, std::span(&removed, 1)).front();
            gone.assign(out.parts.begin(), out.parts.end());
            equations = equations.with_inputs(out.inputs);
        }
        Arrays out = OutputSolver::rounded(solver_.solve(module.matrix, equations), after, type, bias);
        const auto count = static_cast<int64_t>(gone.size());
        if (from != nullptr) out["gone"] = {{count}, std::move(gone)};
        return out;
    }

    // As in refit: the norm after a map decides how much the module adds.
    void solve_gain(size_t p, const OutputMap& module) {
        if (!model_.topology.has(p, module.post_norm)) return;
        if (step_.dry_run()) {
            install_vector(model_, p, module.post_norm,
                           lazy::constant(DType::F32, {model_.config.n_embd}, 1));
            return;
        }
        const auto found = step_.work->results_of_all(key_of(kGain, p, module.post_norm), [&] {
            return Arrays{{"gain", {{model_.config.n_embd}, solver_.solve_gain(model_, p, module).gain}}};
        });
        install_vector(model_, p, module.post_norm, found.at("gain"));
    }

    void note(size_t p, const OutputMap& module, const Narrowable* from, const std::vector<int64_t>& gone,
              const std::vector<double>& figures) {
        json entry = {{"layer", p}, {"slot", slot_name(module.matrix)}};
        if (from != nullptr) {
            entry["parts"] = from->parts;
            entry["gone"] = gone;
        }
        if (!figures.empty()) {
            entry["ridge"] = figures[0];
            entry["error_before"] = figures[1];
            entry["error_after"] = figures[2];
        }
        solved_.push_back(std::move(entry));
    }

    void report(const Model& before) {
        auto& lines = step_.report.lines;
        // Layers by what they keep.
        std::map<std::string, std::vector<size_t>> sizes;
        for (size_t i = 0; i < modules_.size(); ++i) {
            const Narrowable& m = modules_[i];
            if (removed_[i] > 0)
                sizes[fmt::format("{:5} of {} {}", m.parts - removed_[i], m.parts,
                                  m.is_attention() ? "KV groups" : "FFN channels")]
                    .push_back(m.layer);
        }
        for (const auto& [size, layers] : sizes)
            lines.push_back(fmt::format("{} stay in layers {}", size, layers_text(layers)));
        lines.push_back("saves " + saving_text(before, model_));
        details_["modules"] = solved_;
        report_requantized(requantized_, "", step_.report, details_);
        step_.report.details = details_.dump();
    }

    Model model_;
    Step& step_;
    OutputSolver solver_;
    std::vector<Narrowable> modules_;
    std::vector<int64_t> removed_;  // by module
    std::vector<Requantized> requantized_;
    json details_ = json::object();
    std::vector<json> solved_;
};

Model apply(const Model& model, Step& step) { return Narrow(model, step).run(); }

constexpr const char* kDocumentation = R"(
FFN channels go in every layer, and KV groups (a key and a value head with their query heads) where `attention` asks for it.
Layer by layer, on the inputs that the map after them (`ffn.down`, `attn.o`) has in the model as it is by then:

1. The map W is solved for the original's residual stream after the module, as `refit` does.
2. Parts are removed one after another, each time the ones without which the outputs W a change least when the parts that
   stay make up for them (`select=obs`): the optimal brain surgeon (Hassibi, Stork 1992) on the Gram matrix of the inputs, as in
   SlimGPT (Ling et al. 2024, section 3), with a ridge of 0.01 of its mean diagonal. `select=activation`: those whose root mean
   square times the norm of their columns of W is smallest.
3. W is solved again for the parts that stay, with the ridge that is best on the held-out part of the calibration text.

Keeping channels and solving `ffn.down` for them is MoDeGPT's Nyström approximation (Lin et al. 2024, section 3.2). There the
target is the module's own output; here it is the original's residual stream, so that later layers correct the errors of
earlier ones. Wo is solved in all layers after the first change.

**How much.** `ratio` of the channels goes, or so many that `parameters` of the model stays. `attention`: the part of the KV
groups that goes too.

**Of which layer.** `allocation=uniform`: the same of each, so that all layers have one width, and `refold export` writes it as
that of the model. `global`: the cheapest of all layers, as long as nothing makes up for them. Later layers do, and so it is the
better choice for KV groups, of which a layer has few, but not for channels (docs/quality.md). What n parts of a layer cost is the surgeon's error in the model
before the step, in a unit that is measured for each layer: the divergence of the next token (Fisher information at the final
residual stream, on 1024 tokens) when an eighth of its channels is removed. At most three quarters of a layer go. With
`attention=auto`, KV groups compete with channels for the budget, each by its cost per parameter. Layers then differ in width;
an export to stock llama.cpp or transformers fills them up with zeros to the widest.

A layer keeps a multiple of `multiple` channels: with 32, rows of `ffn.down` are whole blocks of most quantized types.
`prune_magnitude` and `llm_pruner` remove the same parts without solving anything; `llmdrop` and `drop` remove whole modules.
Shared FFNs and factors are not narrowed; do this step first. Attention that shares anything is left alone.

Needs calibration text (`--calib FILE --calib-tokens N`) of several kinds, with at least a few times as many tokens as the FFN
is wide; memory and time are those of `refit`, and with `global` about half as much again. Solved weights keep their type, as in
`refit`. An interrupted run resumes after the modules that it had solved.
)";

}  // namespace

extern const Method method;
const Method method = {
    "narrow",
    "leave out the FFN channels and KV groups that the maps after them can do without, and solve these maps "
    "anew",
    "refold; Optimal Brain Surgeon (Hassibi, Stork 1992), SlimGPT, MoDeGPT section 3.2",
    kDocumentation + 1,
    {
        {"ratio", OptionSpec::Kind::number, "0.1", "part of the FFN channels that goes", 0.0, 1.0},
        {"parameters", OptionSpec::Kind::number, "1",
         "part of the model's parameters that stays; below 1 it takes the place of ratio", 0.0, 1.0},
        {.name = "attention",
         .fallback = "0",
         .help = "part of the KV groups that goes; auto: they compete with FFN channels"},
        {.name = "allocation",
         .kind = OptionSpec::Kind::choice,
         .fallback = "uniform",
         .help = "how much of which layer: the same of each, or measured over the model",
         .choices = {"uniform", "global"}},
        {.name = "select",
         .kind = OptionSpec::Kind::choice,
         .fallback = "obs",
         .help = "which parts of a layer: optimal brain surgeon, or activation times norm of the weights",
         .choices = {"obs", "activation"}},
        layers_option(),
        {"multiple", OptionSpec::Kind::integer, "32", "a layer keeps a multiple of so many FFN channels", 1},
        ridge_option(),
        bias_option(),
    },
    apply,
    [](const Options&) { return true; },
};

}  // namespace refold::narrow_method
