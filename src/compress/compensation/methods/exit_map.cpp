// Exit maps: they make the residual stream at the end of a loop readable for the final norm and the head.
#include <cmath>
#include <nlohmann/json.hpp>

#include "calibrate/residual_stream.h"
#include "compress/compensation/compensating_map.h"
#include "compress/compensation/next_token_metric.h"
#include "compress/method/lazy.h"
#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "compress/method/work.h"
#include "core/error.h"
#include "core/group.h"
#include "core/progress.h"

namespace refold::exit_map_method {
namespace {

using nlohmann::json;

// Tokens in the mean of the metric, evenly spaced among all.
constexpr size_t kMetricTokens = 4096;
// With 0.001, or with the unit matrix as the metric, exits agree less with the last loop, above all at low
// ranks.
constexpr double kMetricFloor = 0.3;

Model without_maps(Model model) {
    for (Slots& slots : model.topology.layers) slots.erase(Slot::exit_map);
    model.drop_unreferenced();
    return model;
}

class ExitMaps {
public:
    ExitMaps(const Model& model, Step& step)
        : model_(without_maps(model)),
          step_(step),
          rank_(step.options.integer("rank") > 0 ? step.options.integer("rank")
                                                 : std::max<int64_t>(1, model.config.n_embd / 4)),
          length_(model.topology.layers.size() / static_cast<size_t>(model.topology.loops)) {
        if (model.topology.loops < 2)
            fail(ErrorCode::unsupported, "exit_map", "{}: the model has no loops to exit between",
                 model.label);
        if (!model.config.causal || model.config.n_prefix > 0)
            fail(ErrorCode::unsupported, "exit_map", "exits are for decoders without prefix keys");
        if (rank_ > model.config.n_embd)
            fail(ErrorCode::usage, "exit_map", "rank={}: a map of {} features has at most as many", rank_,
                 model.config.n_embd);
        for (size_t end = length_; end < model.topology.layers.size(); end += length_)
            ends_.push_back(end - 1);
    }

    Model run() {
        const int64_t n = model_.config.n_embd;
        std::map<std::string, Tensor> parts;
        if (!step_.dry_run())
            parts =
                step_.work->results_of_all({kSolution, {{"step", step_.identity}}}, [&] { return solve(); });
        json exits = json::array();
        for (size_t e = 0; e < ends_.size(); ++e) {
            const auto part = [&](const char* name, std::vector<int64_t> shape) {
                return step_.dry_run() ? lazy::constant(DType::F32, std::move(shape), 0)
                                       : parts.at(name + std::to_string(e));
            };
            install(ends_[e], part("u", {rank_, n}), part("v", {n, rank_}));
            if (!step_.dry_run())
                exits.push_back(report(e, lazy::floats(parts.at("figures" + std::to_string(e)), nullptr)));
        }
        step_.report.details = json{{"exits", exits}}.dump();
        return std::move(model_);
    }

private:
    void install(size_t layer, const Tensor& u, const Tensor& v) {
        Slots& slots = model_.topology.layers[layer];
        const auto matrix =
            std::find_if(slots.begin(), slots.end(), [](const auto& s) { return is_matrix(s.first); });
        const DType type = computed_type(
            step_.options.text("type"), model_,
            matrix == slots.end() ? std::vector<std::string>{} : tensors_of(base_of(matrix->second)));
        const std::string stem = fmt::format("blk.{}.{}", layer, slot_name(Slot::exit_map));
        model_.tensors[stem + ".u"] = as_type(u, type);
        model_.tensors[stem + ".v"] = as_type(v, type);
        slots[Slot::exit_map] = LowRank{stem + ".u", stem + ".v"};
    }

    json report(size_t exit, const std::vector<float>& figures) {
        step_.report.lines.push_back(fmt::format(
            "exit after loop {}: squared difference in what is predicted {:.4g} -> {:.4g} on text solved "
            "with, {:.4g} -> {:.4g} held out, ridge {:.3g}",
            exit + 1, figures[1], figures[2], figures[3], figures[4], figures[0]));
        json out = figures_to_json(figures);
        out["loop"] = exit + 1;
        return out;
    }

    // Residual streams at the ends of the loops: [loop][sequence of this process][token x n_embd].
    using Streams = std::vector<std::vector<std::vector<float>>>;
    Streams streams(const std::vector<std::vector<int32_t>>& sequences) {
        const size_t layers = model_.topology.layers.size();
        Progress progress("exit maps", layers, "layers");
        ResidualStream stream(model_, sequences, step_.calibration->options.length, step_.threads);
        Streams out;
        for (size_t p = 0; p < layers; ++p) {
            stream.advance(model_, p);
            progress.advance(1);
            if ((p + 1) % length_ != 0) continue;
            if (stream.layer() != p + 1)
                fail(ErrorCode::unsupported, "exit_map", "layer {}'s attention is read after its loop", p);
            auto& loop = out.emplace_back();
            for (size_t s = 0; s < sequences.size(); ++s) {
                const auto residual = stream.residual(s);
                loop.emplace_back(residual.begin(), residual.end());
            }
        }
        progress.finish();
        return out;
    }

    static constexpr Computation kSolution{"exit_map", 1};

    Arrays solve() {
        const Calibration& text = *step_.calibration;
        const auto [sequences, fit] = own_sequences(text);
        const Streams loops = streams(sequences);
        const auto n = static_cast<size_t>(model_.config.n_embd);
        const auto& last = loops.back();

        NextTokenMetric metric(model_);
        const size_t every = std::max<size_t>(1, static_cast<size_t>(text.fit_tokens()) / kMetricTokens);
        for (size_t s = 0; s < fit; ++s) {
            std::vector<float> chosen;
            for (size_t at = 0; at < last[s].size(); at += every * n)
                chosen.insert(chosen.end(), last[s].begin() + static_cast<ptrdiff_t>(at),
                              last[s].begin() + static_cast<ptrdiff_t>(at + n));
            metric.add(chosen);
        }
        metric.finish(kMetricFloor);

        Arrays out;
        for (size_t e = 0; e < ends_.size(); ++e) {
            CompensatingMap map({model_.config.n_embd, model_.config.n_embd, rank_, std::nullopt, 0},
                                text.options.length);
            for (size_t s = 0; s < sequences.size(); ++s) {
                std::vector<float> x = loops[e][s], difference = last[s];
                for (size_t at = 0; at < x.size(); at += n) {
                    const float scale = metric.scale(std::span(last[s]).subspan(at, n));
                    for (size_t i = at; i < at + n; ++i) {
                        difference[i] = (difference[i] - x[i]) / scale;
                        x[i] /= scale;
                    }
                }
                map.add(s >= fit, static_cast<int64_t>(x.size() / n), x, metric.measured(difference));
            }
            map.sum_over_processes();
            const SolvedMap solved = map.solve();
            const auto name = std::to_string(e);
            const auto rank = rank_, width = model_.config.n_embd;
            out["u" + name] = {{rank, width}, metric.unmeasured(solved.u)};
            out["v" + name] = {{width, rank}, solved.v};
            out["figures" + name] = figures_of(solved);
        }
        return out;
    }

    Model model_;
    Step& step_;
    int64_t rank_;
    size_t length_;
    std::vector<size_t> ends_;  // last layer of each loop except the last
};

Model apply(const Model& model, Step& step) { return ExitMaps(model, step).run(); }

constexpr const char* kDocumentation = R"(
An early exit applies the final norm and the head to the residual stream x at the end of a loop, where they have never been
used. An exit map W of low rank corrects x: the norm reads x + W x. W is solved in closed form on the model's own activations.
Nothing else changes: tokens that run all loops get the same result, and so do keys and values. With z the residual stream at
the end of the last loop and s its root mean square, W minimizes the sum over tokens of

    |L^T ((x + W x) - z) / s|^2,   L L^T = E[D W_out^T (diag(p) - p p^T) W_out D]

plus a ridge that is chosen on the held-out part of the calibration text (every eighth sequence). D is the gain of the final
norm, p the next token's distribution after all loops. L L^T is its Fisher information: for small differences, half of the
square is the divergence from the distribution after all loops. As differences are not small everywhere, 0.3 of the mean of its
diagonal is added to it. So the few directions that `rank` allows are those that matter to the prediction (reduced-rank
regression). The idea of such a map is that of the tuned lens (Belrose et al. 2023), which trains it.

Make this the last step: other steps change the residual stream. A second `exit_map` solves anew. `train` with
`objective=early_exit` trains the maps further, with `train=exit` only them. Each loop except the last costs 2 rank n_embd
numbers, which are multiplied only where the head is. `eval` and `serve` use the maps wherever tokens may exit. Exports for
other programs leave them out.

Needs calibration text (`--calib FILE --calib-tokens N`) with several times as many tokens as the model is wide. The residual
streams of the text at the ends of all loops are in memory, with the weights of one layer and later those of the output in
float32.
)";

}  // namespace

extern const Method method;
const Method method = {
    "exit_map",
    "exits between loops: a low-rank map before the head, in closed form",
    "beyond the papers; Relaxed Recursive Transformers, section 3.7, for early exit",
    kDocumentation + 1,
    {{"rank", OptionSpec::Kind::integer, "0", "of the maps; 0: a quarter of n_embd", 0}, type_option()},
    apply,
    [](const Options&) { return true; },
};

}  // namespace refold::exit_map_method
