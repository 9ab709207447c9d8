#include "compress/refit/output_solver.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "compress/method/selection.h"
#include "compress/rewrite/modules.h"
#include "compress/rounding/gptq_rounding.h"
#include "core/error.h"
#include "model/materialize.h"

namespace refold {
namespace {

// What reads the residual stream: the attention of `layer`, or its FFN. After the last layer: the head, as
// the attention of another one.
struct Reader {
    size_t layer;
    bool ffn;

    // A module of the layer has this output map. With parallel residuals both read the same.
    bool in(const Model& model) const {
        if (layer == model.topology.layers.size()) return true;
        if (model.config.parallel_residual)
            return model.topology.has(layer, Slot::attn_o) || has_ffn(model.topology, layer);
        return ffn ? has_ffn(model.topology, layer) : model.topology.has(layer, Slot::attn_o);
    }
    Reader next(bool parallel) const {
        return ffn || parallel ? Reader{layer + 1, false} : Reader{layer, true};
    }
};

// The model's next module after the one in `layer`, if it lacks modules of the original between them.
std::optional<Reader> reader_over_a_gap(const Model& original, const Model& model, size_t layer,
                                        const OutputMap& module) {
    const bool parallel = model.config.parallel_residual;
    if (!model.topology.has(layer, module.matrix)) return std::nullopt;
    bool gap = false;
    Reader at = Reader{layer, module.matrix == Slot::ffn_down}.next(parallel);
    for (; !at.in(model); at = at.next(parallel)) gap = gap || at.in(original);
    return gap ? std::optional(at) : std::nullopt;
}

bool describes(const Family& family, Slot slot) {
    return std::any_of(family.layer_slots.begin(), family.layer_slots.end(),
                       [&](const SlotDescription& d) { return d.slot == slot; });
}

}  // namespace

OptionSpec ridge_option(const char* help) { return {.name = "ridge", .fallback = "auto", .help = help}; }

OptionSpec bias_option() {
    return {.name = "bias",
            .kind = OptionSpec::Kind::choice,
            .fallback = "auto",
            .help = "also solve a bias, where the architecture has one",
            .choices = {"auto", "no"}};
}

std::optional<double> parse_ridge(const std::string& text, const char* method) {
    if (text == "auto") return std::nullopt;
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !std::isfinite(value) || value < 0)
        fail(ErrorCode::usage, method, "ridge must be auto or a number from 0, got '{}'", text);
    return value;
}

AlignedStreams& OutputSolver::streams(const Model& model) {
    if (!streams_) streams_.emplace(step_.original, model, *step_.calibration, step_.threads);
    for (; advanced_ < pending_; ++advanced_) streams_->advance(model, advanced_);
    return *streams_;
}

void OutputSolver::visit(const Model& model, size_t layer, const std::vector<Tap>& taps,
                         const std::function<void(const AlignedStreams::Rows&)>& see,
                         AlignedStreams::Extent extent) {
    // The same taps for all visits of the layer, as AlignedStreams wants.
    std::vector<Tap> of_original = of_original_;
    of_original.push_back(Tap::ffn_output);
    for (const OutputMap& m : kOutputMaps)
        if (model.topology.has(layer, m.post_norm)) of_original.push_back(m.projected);
    streams(model).visit(model, layer, of_original, taps, see, extent);
}

void OutputSolver::visit_output(const Model& model, size_t layer, const OutputMap& module,
                                std::vector<Tap> taps,
                                const std::function<void(const AlignedStreams::Rows&)>& see) {
    auto extent = AlignedStreams::Extent::taps;
    if (!streams(model).adds_maps_alone(model, layer)) {
        // Where the FFN follows the attention, the attention's equations do not need it.
        const bool half = module.matrix == Slot::attn_o && !model.config.parallel_residual;
        for (const Tap tap : {module.projected, module.output, half ? Tap::residual : Tap::ffn_output})
            taps.push_back(tap);
        if (module.matrix == Slot::attn_o && model.topology.has(layer, Slot::attn_comp_norm))
            taps.push_back(Tap::attn_input);
        if (!half) extent = AlignedStreams::Extent::whole;
    }
    const auto reader = reader_over_a_gap(step_.original, model, layer, module);
    if (!reader) return visit(model, layer, taps, see, extent);
    const auto goals = streams(model).original_before(reader->layer, reader->ffn);
    visit(
        model, layer, taps,
        [&](AlignedStreams::Rows rows) {
            rows.goal = goals[rows.sequence];
            see(rows);
        },
        extent);
}

bool OutputSolver::leads_over_a_gap(const Model& model, size_t layer, const OutputMap& module) const {
    return reader_over_a_gap(step_.original, model, layer, module).has_value();
}

OutputSolver::Equations OutputSolver::Equations::with_inputs(std::span<const int64_t> some) const {
    Equations out{fit.with_inputs(some), held_out.with_inputs(some), {}};
    for (size_t row = 0; row < prior.size(); row += static_cast<size_t>(fit.inputs())) {
        for (const int64_t i : some) out.prior.push_back(prior[row + static_cast<size_t>(i)]);
    }
    return out;
}

OutputSolver::Equations OutputSolver::equations(const Model& model, size_t layer, const OutputMap& module,
                                                const FreeMap& map, bool bias) {
    const MapRows rows(model, layer, module, map, bias);
    Equations out{{rows.inputs(), map.outputs}, {rows.inputs(), map.outputs}, rows.prior()};
    visit_output(model, layer, module, {module.inner}, [&](const AlignedStreams::Rows& seen) {
        rows.add(seen, seen.held_out ? out.held_out : out.fit);
    });
    out.fit.sum_over_processes();
    out.held_out.sum_over_processes();
    return out;
}

OutputSolver::Solution OutputSolver::solve(const Model& model, size_t layer, const OutputMap& module,
                                           const FreeMap& map, bool bias) {
    return solve(module.matrix, equations(model, layer, module, map, bias));
}

OutputSolver::Solution OutputSolver::solve(Slot slot, const Equations& equations) const {
    const auto& [fit, held_out, prior] = equations;
    LeastSquares all = fit;
    all.add(held_out);
    const auto start = ridges_.find(slot);
    if (!ridge_) {
        Ridged solved =
            solve_with_held_out(fit, held_out, prior, start == ridges_.end() ? 1e-2 : start->second);
        return {std::move(solved), prior, std::move(all), held_out};
    }
    Ridged solved{*ridge_, held_out.error(prior), 0, {}};
    solved.error_after = held_out.error(fit.solve(solved.ridge, prior));
    solved.weights = all.solve(solved.ridge, prior);
    return {std::move(solved), prior, std::move(all), held_out};
}

DType OutputSolver::solved_type(const Model& model, const FreeMap& map, const std::string& option,
                                int64_t inputs) {
    const DType first = model.tensor(map.tensors.front()).type;
    const bool alike = std::all_of(map.tensors.begin(), map.tensors.end(),
                                   [&](const std::string& name) { return model.tensor(name).type == first; });
    if (option == "same" && alike && inputs % block_elements(first) == 0) return first;
    return computed_type(option, model, map.tensors);
}

Arrays OutputSolver::rounded(Solution solution, const FreeMap& map, DType type, bool bias) {
    Array weights{{map.inputs, map.outputs}, {}}, offsets{{map.outputs}, {}};
    std::vector<float>& values = solution.map.weights;
    if (!is_float(type)) {
        const RoundingInputs inputs{solution.all.gram(), solution.all.inputs(), map.inputs};
        Rounded best = gptq_rounded(values, inputs, type);
        double error = solution.held_out.error(best.values);
        // Rounding makes no map better.
        if (solution.map.error_before < error) {
            Rounded of_prior = gptq_rounded(solution.prior, inputs, type);
            if (const double other = solution.held_out.error(of_prior.values); other < error) {
                best = std::move(of_prior);
                error = other;
            }
        }
        values = std::move(best.values);
        weights.type = type;
        weights.packed = std::move(best.packed);
        solution.map.error_after = error;
    }
    const auto in = static_cast<size_t>(map.inputs), stride = static_cast<size_t>(solution.all.inputs());
    for (size_t at = 0; at < values.size(); at += stride) {
        const float* row = values.data() + at;
        if (is_float(type)) weights.values.insert(weights.values.end(), row, row + in);
        if (bias) offsets.values.push_back(row[in]);
    }
    Arrays out = {{"weights", std::move(weights)},
                  {"figures",
                   {{3},
                    {static_cast<float>(solution.map.ridge), static_cast<float>(solution.map.error_before),
                     static_cast<float>(solution.map.error_after)}}}};
    if (bias) out["bias"] = std::move(offsets);
    return out;
}

RidgedGain OutputSolver::solve_gain(const Model& model, size_t layer, const OutputMap& module) {
    const std::vector<float> prior =
        materialize(model, model.topology.at(layer, module.post_norm), module.post_norm, layer);
    GainSquares fit(model.config.n_embd), held_out(model.config.n_embd);
    visit_output(model, layer, module, {}, [&](const AlignedStreams::Rows& seen) {
        add_gain_rows(module, model.config, seen, seen.held_out ? held_out : fit);
    });
    fit.sum_over_processes();
    held_out.sum_over_processes();
    return refold::solve_gain(fit, held_out, prior);
}

void OutputSolver::set_ridge(Slot slot, double ridge) {
    if (std::isfinite(ridge)) ridges_[slot] = ridge;
}

bool has_bias(const Model& model, size_t layer, const OutputMap& module) {
    return model.topology.has(layer, module.bias) || describes(*model.family, module.bias);
}

void install_vector(Model& model, size_t layer, Slot slot, const Tensor& vector) {
    const std::string name = fmt::format("blk.{}.{}.refit", layer, slot_name(slot));
    const auto& described = describes(*model.family, slot) ? tensor_name(*model.family, slot, layer) : name;
    // Another layer may use the vector, too.
    const bool taken = model.tensors.contains(described) && is_read_elsewhere(model, described, layer);
    model.tensors[taken ? name : described] = vector;
    model.topology.layers[layer][slot] = Dense{taken ? name : described};
}

}  // namespace refold
