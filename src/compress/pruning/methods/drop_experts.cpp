// Experts of mixtures that do least for the tokens routed to them are left out.
// Lasby et al. (2025), "REAP the Experts: Why Pruning Prevails for One-Shot MoE compression".
#include <algorithm>
#include <nlohmann/json.hpp>

#include "calibrate/residual_stream.h"
#include "compress/method/lazy.h"
#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "compress/method/work.h"
#include "compress/pruning/expert_importance.h"
#include "compress/rewrite/experts.h"
#include "core/error.h"
#include "core/group.h"
#include "core/progress.h"

namespace refold::drop_experts_method {
namespace {

using nlohmann::json;
using Doubles = std::vector<double>;
using Importances = std::map<size_t, Doubles>;  // layer -> of each expert

constexpr const char* kName = "drop_experts";
constexpr Computation kImportance{kName, 1};

// The importance of each expert of a layer over the sequences of all processes.
Doubles layer_importance(const Model& model, size_t layer, const ResidualStream& stream,
                         ExpertMeasure measure) {
    ResidualStream::Pass pass(stream, model, layer, {Tap::ffn_input}, true);
    ExpertImportance sums(model, layer, measure);
    for (size_t s = 0; s < stream.sequences(); ++s) {
        pass.run(s);
        sums.add(pass.tapped(Tap::ffn_input));
    }
    return sums.finish();
}

Importances importances(const Model& model, const Step& step, const std::vector<size_t>& layers) {
    const Calibration& calibration = *step.calibration;
    auto all = calibration.fit;
    all.insert(all.end(), calibration.held_out.begin(), calibration.held_out.end());
    const auto sequences = group().own(all);
    const ExpertMeasure measure =
        step.options.text("measure") == "reap" ? ExpertMeasure::reap : ExpertMeasure::uses;
    ResidualStream stream(model, sequences, calibration.options.length, step.threads);
    Importances out;
    Progress progress("weighing experts", layers.back() + 1, "layers");
    for (size_t p = 0; p <= layers.back(); ++p) {
        if (std::binary_search(layers.begin(), layers.end(), p)) {
            const ResultKey key{
                kImportance,
                {{"model", step.identity_before}, {"layer", p}, {"measure", step.options.text("measure")}}};
            const auto found = step.work->results_of_all(key, [&] {
                const Doubles values = layer_importance(model, p, stream, measure);
                return Arrays{
                    {"importance", {{static_cast<int64_t>(values.size())}, {values.begin(), values.end()}}}};
            });
            out[p] = lazy::numbers(found.at("importance"));
        }
        stream.advance(model, p);
        progress.advance(1);
    }
    progress.finish();
    return out;
}

struct Scored {
    size_t layer;
    int64_t expert;
    double importance;
};

// The experts that stay, by layer, ascending: all but the `ratio` of smallest importance, of each layer or
// of all together. Of equal ones the last go. Every layer keeps as many as a token uses.
std::map<size_t, std::vector<int64_t>> kept_experts(const Model& model, const Importances& importance,
                                                    double ratio, bool global) {
    std::vector<Scored> candidates;
    std::map<size_t, size_t> quota;  // how many may go
    size_t total = 0;
    for (const auto& [p, values] : importance) {
        for (size_t e = 0; e < values.size(); ++e)
            candidates.push_back({p, static_cast<int64_t>(e), values[e]});
        const size_t spare = values.size() - static_cast<size_t>(model.config.n_expert_used);
        quota[p] = global ? spare : std::min(spare, part_of(ratio, values.size()));
        total += values.size();
    }
    size_t left = global ? part_of(ratio, total) : total;
    std::stable_sort(candidates.begin(), candidates.end(), [](const Scored& a, const Scored& b) {
        return a.importance < b.importance || (a.importance == b.importance && a.expert > b.expert);
    });
    std::map<size_t, std::vector<int64_t>> kept;
    for (const Scored& candidate : candidates) {
        if (left > 0 && quota[candidate.layer] > 0) {
            --left;
            --quota[candidate.layer];
        } else {
            kept[candidate.layer].push_back(candidate.expert);
        }
    }
    for (auto& [p, experts] : kept) std::sort(experts.begin(), experts.end());
    return kept;
}

// Layers of the option `layers` that have experts. Throws Error(usage) when there are none.
std::vector<size_t> layers_with_experts(const Model& model, const Options& options) {
    std::vector<size_t> out;
    for (const size_t p : parse_layers(options.text("layers"), model.topology.layers.size())) {
        if (model.topology.has(p, Slot::ffn_router)) out.push_back(p);
    }
    if (out.empty())
        fail(ErrorCode::usage, kName, "none of the layers {} of '{}' has experts", options.text("layers"),
             model.label);
    return out;
}

Model apply(const Model& model, Step& step) {
    const Options& options = step.options;
    const auto layers = layers_with_experts(model, options);
    need_own_experts(model, layers, kName);
    Importances importance;
    if (step.dry_run()) {
        for (const size_t p : layers) importance[p].resize(static_cast<size_t>(model.config.n_expert_of(p)));
        step.report.lines.emplace_back(
            "dry run: which experts is decided by calibration text; here they are the last ones");
    } else {
        importance = importances(model, step, layers);
    }
    const auto kept =
        kept_experts(model, importance, options.number("ratio"), options.text("rank") == "global");
    Model out = model;
    json list = json::object(), values = json::object();
    size_t gone = 0, total = 0;
    for (const auto& [p, experts] : kept) {
        const auto before = static_cast<size_t>(model.config.n_expert_of(p));
        gone += before - experts.size();
        total += before;
        list[std::to_string(p)] = experts;
        if (!step.dry_run()) values[std::to_string(p)] = importance.at(p);
        keep_experts(out, p, experts);
        step.report.lines.push_back(
            fmt::format("  layer {}: {} of {} experts stay", p, experts.size(), before));
    }
    out.drop_unreferenced();
    set_most_experts(out);
    step.report.lines.push_back(fmt::format("{} of {} experts left out", gone, total));
    step.report.lines.push_back("saves " + saving_text(model, out));
    step.report.details = json{{"kept", list}, {"importance", values}, {"left_out", gone}}.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
Experts of a mixture go with their rows of the router: a token that would have used one uses the next best that is left. No
other weight changes, and a token still uses as many experts as before, so this saves memory, not time.

`measure` says which go first. `reap`: those with the smallest mean of router weight times norm of the expert's output, over
the tokens of the calibration text that are routed to them. `uses`: those to which the fewest tokens are
routed, the usual baseline. An expert that no token uses counts nothing in either.

`ratio` is the part of a layer's experts (`rank: layer`) or of all experts (`rank: global`, by the same figures; layers then
keep different numbers of them). Each layer keeps at least as many as a token uses. Where all layers keep the same number, the
result can be exported to Hugging Face and stock llama.cpp as a smaller model of its family; otherwise only refold's own format
can say it. Needs calibration text (`--calib FILE --calib-tokens N`): give it what the model is for, since experts that it does
not need are the ones that go.
)";

}  // namespace

extern const Method method;
const Method method = {
    kName,
    "leave out the experts that do least for the tokens routed to them",
    "REAP the Experts: Why Pruning Prevails for One-Shot MoE compression",
    kDocumentation + 1,
    {
        {"ratio", OptionSpec::Kind::number, "0.25", "part of the experts to leave out", 0.0, 1.0},
        {.name = "measure",
         .kind = OptionSpec::Kind::choice,
         .fallback = "reap",
         .help = "what an expert counts: its weighted output, or how many tokens use it",
         .choices = {"reap", "uses"}},
        {.name = "rank",
         .kind = OptionSpec::Kind::choice,
         .fallback = "layer",
         .help = "layer by layer, or over the whole model",
         .choices = {"layer", "global"}},
        layers_option(),
    },
    apply,
    [](const Options&) { return true; },
};

}  // namespace refold::drop_experts_method
