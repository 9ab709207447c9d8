#include "compress/compensation/compensate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "calibrate/aligned_streams.h"
#include "compress/compensation/compensating_map.h"
#include "compress/method/lazy.h"
#include "compress/method/selection.h"
#include "compress/method/work.h"
#include "core/error.h"
#include "core/group.h"
#include "core/progress.h"
#include "core/text.h"
#include "model/accounting.h"
#include "model/materialize.h"

namespace refold {
namespace {

using nlohmann::json;

// What W_c makes up for: the difference in the residual stream after the attention, in that after the layer,
// or in the output of attn.o.
enum class Difference { attention, layer, projected };

// Table 12, and the authors' program for Gemma 2 (before_norm): the input of W_c, and the activation that it
// is added to.
struct Placement {
    const char* name;
    Slot slot;
    Tap input;
    Difference difference;
    bool before_output;  // it is added to the input of attn.o
};
using D = Difference;
constexpr std::array kPlacements = {
    Placement{"attention", Slot::attn_comp, Tap::attn_input, D::attention, false},
    Placement{"before_norm", Slot::attn_comp_norm, Tap::attn_input, D::projected, false},
    Placement{"ffn", Slot::attn_comp_ffn, Tap::attn_input, D::layer, false},
    Placement{"before_o", Slot::attn_comp_o, Tap::attn_input, D::attention, true},
    Placement{"values", Slot::attn_comp_v, Tap::v, D::attention, true}};

const Placement& placement_of(const std::string& name) {
    return *std::find_if(kPlacements.begin(), kPlacements.end(),
                         [&](const Placement& p) { return name == p.name; });
}

bool has_compensation(const Model& model, size_t layer) {
    return std::any_of(kPlacements.begin(), kPlacements.end(),
                       [&](const Placement& p) { return model.topology.has(layer, p.slot); });
}

class Compensation {
public:
    Compensation(const Model& model, Step& step, const CompensationSettings& settings)
        : model_(model), step_(step), settings_(settings), placement_(placement_of(settings.place)) {}

    Model run(const std::vector<size_t>& layers, json& details) {
        check(layers);
        const Cost before = account(model_).model;
        Progress progress("compensation", layers.size(), "layers");
        for (const size_t p : layers) {
            add(p);
            progress.advance(1);
        }
        progress.finish();
        model_.drop_unreferenced();
        report(layers, account(model_).model.parameters - before.parameters, details);
        return std::move(model_);
    }

private:
    void check(const std::vector<size_t>& layers) const {
        const ModelConfig& c = model_.config;
        if (!c.causal || c.n_prefix > 0)
            fail(ErrorCode::unsupported, "compensation", "W_c is for decoders without prefix keys: {}",
                 c.causal ? "this model has prefix keys" : fmt::format("'{}' is an encoder", c.family));
        const size_t n_layer = model_.topology.layers.size();
        if (n_layer != step_.original.topology.layers.size())
            fail(ErrorCode::unsupported, "compensation", "the number of layers is not the original's");
        for (const size_t p : layers) check_layer(p);
        if (settings_.solver != "paper" || step_.dry_run()) return;
        const auto sequences = static_cast<int64_t>(step_.calibration->fit.size());
        if (settings_.averages > sequences)
            fail(ErrorCode::usage, "compensation",
                 "averages={}, but only {} sequences to average - give more calibration text",
                 settings_.averages, sequences);
    }

    void check_layer(size_t p) const {
        const auto refuse = [&](const std::string& why) {
            fail(ErrorCode::unsupported, "compensation", "layer {}: {}", p, why);
        };
        const Topology &now = model_.topology, &original = step_.original.topology;
        if (has_compensation(model_, p)) refuse("it has W_c already (an earlier step)");
        if (!original.has(p, Slot::attn_o)) refuse("it has no attention in the original model either");
        if (!now.has(p, Slot::attn_norm) && !original.has(p, Slot::attn_norm))
            refuse("it has no norm before the attention, whose output W_c reads");
        const bool projected = placement_.difference == D::projected;
        if ((placement_.before_output || projected) && !now.has(p, Slot::attn_o))
            refuse(fmt::format("place={}: its attention was left out", placement_.name));
        if (projected && !now.has(p, Slot::attn_post_norm))
            refuse("place=before_norm: it has no norm after attn.o - take place=attention");
        if (placement_.before_output && now.has(p, Slot::attn_post_norm))
            refuse(
                fmt::format("place={}: a norm after attn.o makes the problem non-linear - take "
                            "place=attention or before_norm",
                            placement_.name));
        if (placement_.slot == Slot::attn_comp_v && !now.source(p).probabilities)
            refuse("place=values: its attention does not weight values with another layer's probabilities");
        const SlotShape shape = slot_shape(placement_.slot, model_.config, p);
        if (settings_.rank > std::min(shape.in, shape.out))
            fail(ErrorCode::usage, "compensation", "layer {}: rank={}, but W_c has {} x {} numbers", p,
                 settings_.rank, shape.out, shape.in);
    }

    void add(size_t p) {
        restore_norm(p);
        std::vector<std::string> sources;
        for (const auto& name : tensors_of(step_.original.topology.at(p, Slot::attn_o)))
            sources.push_back(name);
        const DType type = computed_type(settings_.type, step_.original, sources);
        const SlotShape shape = slot_shape(placement_.slot, model_.config, p);
        if (step_.dry_run() || !is_solved(settings_.solver)) return install(p, type, zeros(shape, p));
        const ResultKey key{kSolution, {{"step", step_.identity}, {"layer", p}}};
        auto solved = step_.work->results_of_all(key, [&] { return solve(p, shape); });
        const auto figures = lazy::floats(solved.at("figures"), nullptr);
        solved_.push_back(figures_to_json(figures));
        solved_.back()["layer"] = p;
        solved.erase("figures");
        install(p, type, solved);
    }

    // The norm was left out together with the attention.
    void restore_norm(size_t p) {
        for (const Slot slot : {Slot::attn_norm, Slot::attn_norm_bias}) {
            const Topology& original = step_.original.topology;
            if (model_.topology.has(p, slot) || !original.has(p, slot)) continue;
            const std::string& name = std::get<Dense>(original.at(p, slot)).tensor;
            const std::string own = model_.tensors.contains(name) ? name + ".original" : name;
            model_.tensors[own] = step_.original.tensor(name);
            model_.topology.layers[p][slot] = Dense{own};
        }
    }

    // The start of training: W_c = 0. In a product only U is 0, V is random: with both 0 there would be no
    // gradients.
    std::map<std::string, Tensor> zeros(SlotShape shape, size_t p) const {
        const int64_t rank = settings_.rank;
        if (rank == 0) return {{"weights", lazy::constant(DType::F32, {shape.in, shape.out}, 0)}};
        const float deviation = 1.0F / std::sqrt(static_cast<float>(shape.in));
        return {{"u", lazy::constant(DType::F32, {rank, shape.out}, 0)},
                {"v", lazy::random(DType::F32, {shape.in, rank}, {deviation, 0}, fmt::format("W_c {}", p))}};
    }

    void install(size_t p, DType type, const std::map<std::string, Tensor>& parts) {
        const std::string stem = fmt::format("blk.{}.{}", p, slot_name(placement_.slot));
        const auto store = [&](const char* part, const char* suffix) {
            model_.tensors[stem + suffix] = as_type(parts.at(part), type);
            return stem + suffix;
        };
        Slots& slots = model_.topology.layers[p];
        if (settings_.rank == 0) {
            slots[placement_.slot] = Dense{store("weights", ".weight")};
        } else {
            slots[placement_.slot] = LowRank{store("u", ".u"), store("v", ".v")};
        }
    }

    // Both streams before layer p, all layers below which are in their final form.
    AlignedStreams& streams(size_t p) {
        if (!streams_) streams_.emplace(step_.original, model_, *step_.calibration, step_.threads);
        for (; advanced_ < p; ++advanced_) streams_->advance(model_, advanced_);
        return *streams_;
    }

    // Sequences that follow each other in the text are averaged together, those that are held out likewise.
    int64_t average_of(const AlignedStreams::Rows& rows) const {
        const Calibration& text = *step_.calibration;
        const auto processes = static_cast<size_t>(group().size()),
                   rank = static_cast<size_t>(group().rank());
        // This process has every so manieth sequence, first of `fit`, then of `held_out`.
        const size_t fit = (text.fit.size() + processes - 1 - rank) / processes;
        const size_t number = (rows.held_out ? rows.sequence - fit : rows.sequence) * processes + rank;
        const size_t count = rows.held_out ? text.held_out.size() : text.fit.size();
        return static_cast<int64_t>(number) * settings_.averages / static_cast<int64_t>(count);
    }

    // The activation whose difference W_c makes up for [tokens, n_embd].
    std::vector<float> compensated(const AlignedStreams::Activations& of) const {
        if (placement_.difference == D::layer) return of.out;
        if (placement_.difference == D::attention) return of.between();
        const auto projected = of.tapped(Tap::attn_projected);
        return {projected.begin(), projected.end()};
    }

    static constexpr Computation kSolution{"compensation", 1};

    Arrays solve(size_t p, SlotShape shape) {
        const MapSettings map{shape.in, model_.config.n_embd, settings_.rank, settings_.ridge,
                              settings_.solver == "paper" ? settings_.averages : 0};
        CompensatingMap problem(map, step_.calibration->options.length);
        // Where the FFN follows the attention, it need not be computed.
        const D difference = placement_.difference;
        const bool half =
            difference == D::projected || (difference == D::attention && !model_.config.parallel_residual);
        const Tap of_original = difference == D::projected ? Tap::attn_projected : Tap::ffn_output;
        const Tap of_model = difference == D::projected ? Tap::attn_projected
                             : half                     ? Tap::residual
                                                        : Tap::ffn_output;
        streams(p).visit(
            model_, p, {of_original}, {placement_.input, of_model},
            [&](const AlignedStreams::Rows& rows) {
                std::vector<float> target = compensated(rows.original);
                const std::vector<float> now = compensated(rows.modified);
                for (size_t i = 0; i < target.size(); ++i) target[i] -= now[i];
                problem.add(rows.held_out, rows.tokens, rows.modified.tapped(placement_.input), target,
                            average_of(rows));
            },
            half ? AlignedStreams::Extent::taps : AlignedStreams::Extent::whole);
        problem.sum_over_processes();
        if (placement_.before_output) {
            auto output = materialize(model_, model_.topology.at(p, Slot::attn_o), Slot::attn_o, p);
            for (float& x : output) x *= model_.config.residual_scale;
            problem.put_before(std::move(output));
        }
        SolvedMap solved = problem.solve();
        Arrays out = {{"figures", figures_of(solved)}};
        if (settings_.rank == 0) {
            out["weights"] = {{shape.in, shape.out}, std::move(solved.weights)};
        } else {
            out["u"] = {{settings_.rank, shape.out}, std::move(solved.u)};
            out["v"] = {{shape.in, settings_.rank}, std::move(solved.v)};
        }
        return out;
    }

    // Parameters of the attention that these layers had in the original and have no more.
    uint64_t left_out(const std::vector<size_t>& layers) const {
        int64_t sum = 0;
        for (const size_t p : layers) {
            for (const auto& [slot, expression] : step_.original.topology.layers[p]) {
                if (!belongs_to_attention(slot) || is_prefix(slot) || model_.topology.has(p, slot)) continue;
                const SlotShape shape = slot_shape(slot, step_.original.config, p);
                sum += shape.in * shape.out;
            }
        }
        return static_cast<uint64_t>(sum);
    }

    void report(const std::vector<size_t>& layers, uint64_t added, json& details) {
        auto& lines = step_.report.lines;
        if (layers.empty())
            lines.emplace_back("no layer's attention is another one's: nothing to compensate");
        for (const json& s : solved_) {
            lines.push_back(fmt::format(
                "layer {}: |difference|^2 {:.4g} -> {:.4g} on text solved with, {:.4g} -> {:.4g} held out{}",
                s["layer"].get<size_t>(), s["fit_before"].get<double>(), s["fit_after"].get<double>(),
                s["held_out_before"].get<double>(), s["held_out_after"].get<double>(),
                settings_.solver == "lsq" && s["ridge"].is_number()
                    ? fmt::format(", ridge {:.3g}", s["ridge"].get<double>())
                    : ""));
        }
        if (!solved_.empty()) warn_of_little_text();
        const uint64_t saved = left_out(layers);
        if (!layers.empty())
            lines.push_back(
                fmt::format("W_c of layers {} adds {} parameters; their attention had {} more than now",
                            layers_text(layers), format_count(added), format_count(saved)));
        details["compensation"] = {{"solver", settings_.solver}, {"place", settings_.place},
                                   {"layers", layers},           {"solved", solved_},
                                   {"parameters_added", added},  {"parameters_of_attention_left_out", saved}};
    }

    void warn_of_little_text() {
        const int64_t tokens = step_.calibration->fit_tokens(), inputs = model_.config.n_embd;
        if (settings_.solver == "lsq" && tokens < 4 * inputs)
            step_.report.lines.push_back(fmt::format(
                "only {} tokens to solve {} inputs with: W_c follows this text closely - give more "
                "(--calib-tokens)",
                tokens, inputs));
    }

    Model model_;
    Step& step_;
    const CompensationSettings& settings_;
    const Placement& placement_;
    std::optional<AlignedStreams> streams_;
    size_t advanced_ = 0;
    json solved_ = json::array();
};

}  // namespace

std::vector<OptionSpec> compensation_options() {
    return {
        {.name = "place",
         .kind = OptionSpec::Kind::choice,
         .fallback = "attention",
         .help =
             "what W_c is added to: the output of the attention, after or before the norm behind attn.o, or "
             "of the FFN; or the input of attn.o, from the normed input or from the values",
         .choices = {"attention", "before_norm", "ffn", "before_o", "values"}},
        {"rank", OptionSpec::Kind::integer, "0", "rank of W_c; 0: full", 0},
        {.name = "ridge",
         .fallback = "auto",
         .help = "lsq: auto (by held-out text), or a number such as 0.01"},
        {"averages", OptionSpec::Kind::integer, "1",
         "paper: number of averages that the sequences are put into", 1, 1 << 20},
        type_option(),
    };
}

CompensationSettings compensation_settings(const Options& options, const std::string& solver) {
    CompensationSettings settings{.solver = solver,
                                  .place = options.text("place"),
                                  .rank = options.integer("rank"),
                                  .ridge = std::nullopt,
                                  .averages = options.integer("averages"),
                                  .type = options.text("type")};
    if (const std::string& ridge = options.text("ridge"); ridge != "auto") {
        char* end = nullptr;
        settings.ridge = std::strtod(ridge.c_str(), &end);
        if (ridge.empty() || *end != '\0' || !std::isfinite(*settings.ridge) || *settings.ridge < 0)
            fail(ErrorCode::usage, "compensation", "ridge must be auto or a number from 0, got '{}'", ridge);
    }
    return settings;
}

bool is_solved(const std::string& solver) { return solver == "lsq" || solver == "paper"; }

std::vector<size_t> layers_to_compensate(const Model& original, const Model& model) {
    std::vector<size_t> layers;
    const size_t n_layer = std::min(original.topology.layers.size(), model.topology.layers.size());
    for (size_t p = 0; p < n_layer; ++p) {
        const Topology &before = original.topology, &after = model.topology;
        const bool lost = before.has(p, Slot::attn_o) && !after.has(p, Slot::attn_o);
        const bool changed = !(before.source(p) == after.source(p));
        if ((lost || changed) && !has_compensation(model, p)) layers.push_back(p);
    }
    return layers;
}

Model compensate(const Model& model, Step& step, const CompensationSettings& settings,
                 const std::vector<size_t>& layers, json& details) {
    return Compensation(model, step, settings).run(layers, details);
}

}  // namespace refold
