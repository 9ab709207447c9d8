// Whole FFNs that resemble one of an earlier layer take over its weights.
// "Head-wise Shareable Attention for Large Language Models", section 5.3 (Table 3).
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/head_sharing/matching.h"
#include "compress/head_sharing/similarity.h"
#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "compress/rewrite/modules.h"
#include "core/error.h"

namespace refold::ffn_share_method {
namespace {

using nlohmann::json;

std::vector<Slot> ffn_slots(const Family& family) { return parse_slots("ffn", family); }

// The FFNs of a model. Layers with the same tensors in the shared slots have one FFN in common.
class Ffns {
public:
    Ffns(const Model& model, const std::vector<Slot>& shared) : shared_(shared) {
        const auto slots = ffn_slots(*model.family);
        for (size_t p = 0; p < model.topology.layers.size(); ++p) {
            const bool whole = std::all_of(slots.begin(), slots.end(), [&](Slot slot) {
                return model.topology.has(p, slot) &&
                       std::holds_alternative<Dense>(model.topology.at(p, slot));
            });
            if (!whole) continue;
            auto& layers = by_key_[key(model, p)];
            if (layers.empty()) stored_.push_back({p, 0});
            layers.push_back(p);
        }
        if (stored_.empty())
            fail(ErrorCode::unsupported, "ffn_share", "{}: no layer has an FFN of whole matrices",
                 model.label);
    }

    const std::vector<Unit>& stored() const { return stored_; }
    const std::vector<size_t>& equal(const Model& model, size_t layer) const {
        return by_key_.at(key(model, layer));
    }

private:
    std::vector<std::string> key(const Model& model, size_t layer) const {
        std::vector<std::string> names;
        for (const Slot slot : shared_)
            names.push_back(std::get<Dense>(model.topology.at(layer, slot)).tensor);
        return names;
    }

    std::vector<Slot> shared_;
    std::map<std::vector<std::string>, std::vector<size_t>> by_key_;
    std::vector<Unit> stored_;
};

std::vector<Slot> shared_slots(const Options& options, const Family& family) {
    auto slots = parse_slots(options.text("slots"), family);
    for (const Slot slot : slots) {
        if (!belongs_to_ffn(slot))
            fail(ErrorCode::usage, "ffn_share", "slots: {} is not of the FFN; direct_share shares attention",
                 slot_name(slot));
    }
    if (options.text("match") == "none" && slots != ffn_slots(family))
        fail(ErrorCode::usage, "ffn_share",
             "match=none leaves whole FFNs out: slots has no meaning with it - leave it at ffn");
    return slots;
}

void need_dense(const Model& model, const std::vector<size_t>& layers) {
    for (const size_t p : layers) {
        for (const Slot slot : ffn_slots(*model.family)) {
            if (!model.topology.has(p, slot) || std::holds_alternative<Dense>(model.topology.at(p, slot)))
                continue;
            fail(ErrorCode::unsupported, "ffn_share",
                 "layer {}: {} is made of factors (a low-rank or Tucker step came before), so it has no "
                 "weights of its own to share - leave the layer out with 'layers', or do this step first",
                 p, slot_name(slot));
        }
    }
}

// Pruning may have left FFNs of different sizes, which cannot replace each other.
void need_one_size(const Model& model, const std::vector<Unit>& units) {
    for (const Unit& unit : units) {
        const int64_t first = model.config.n_ff_of(units.front().layer),
                      own = model.config.n_ff_of(unit.layer);
        if (own != first)
            fail(
                ErrorCode::unsupported, "ffn_share",
                "the FFN of layer {} has {} channels, that of layer {} {}: FFNs of different sizes cannot be "
                "shared - share before pruning",
                units.front().layer, first, unit.layer, own);
    }
}

std::vector<Match> match_all(const Model& model, const std::vector<Unit>& units,
                             const std::vector<bool>& replaceable) {
    std::vector<MatrixOfEach> matrices;
    for (const Slot slot : ffn_slots(*model.family)) {
        auto& matrix = matrices.emplace_back();
        for (const Unit& unit : units) {
            const std::string& name = std::get<Dense>(model.topology.at(unit.layer, slot)).tensor;
            matrix.push_back({{name, 0, model.tensor(name).rows()}});
        }
    }
    const auto gram = gram_matrix(model, matrices, fmt::format("matching {} FFNs", units.size()));
    return best_matches(model, units, gram, replaceable);
}

std::vector<Match> choose(const Model& model, const Ffns& ffns, size_t count, Step& step, json& details) {
    const Options& options = step.options;
    StepReport& report = step.report;
    const auto layers = parse_layers(options.text("layers"), model.topology.layers.size());
    need_dense(model, layers);
    need_one_size(model, ffns.stored());
    std::vector<bool> replaceable;
    for (const Unit& unit : ffns.stored()) {
        const auto& same = ffns.equal(model, unit.layer);
        replaceable.push_back(std::includes(layers.begin(), layers.end(), same.begin(), same.end()));
    }
    std::vector<Match> selected;
    if (model.shapes_only) {
        selected = placeholders(ffns.stored(), replaceable, count);
        report_placeholders(report, details);
    } else {
        const auto matches = match_all(model, ffns.stored(), replaceable);
        details["candidates"] = matches.size();
        selected = largest(matches, count);
        report_similarities(matches, selected, "FFNs", report, details);
    }
    if (selected.size() < count)
        report.lines.push_back(fmt::format("{} FFNs asked for, {} can be replaced", count, selected.size()));
    if (options.text("match") != "random") return selected;
    report.lines.emplace_back(
        "control: each takes a random earlier FFN; cosines are those of its best match");
    return with_random_formers(selected, ffns.stored(), seed_of(options));
}

// The layer takes over slots of another layer, with their biases.
void take_over(Model& model, size_t layer, size_t from, const std::vector<Slot>& slots) {
    const Slots source = model.topology.layers[from];
    for (const Slot slot : slots) {
        model.topology.layers[layer][slot] = source.at(slot);
        if (const auto bias = source.find(*bias_of(slot)); bias != source.end())
            model.topology.layers[layer][bias->first] = bias->second;
    }
}

// All layers with one of the selected FFNs.
std::vector<size_t> layers_of(const Model& model, const Ffns& ffns, const std::vector<Match>& selected) {
    std::vector<size_t> layers;
    for (const auto& match : selected) {
        const auto& same = ffns.equal(model, match.later.layer);
        layers.insert(layers.end(), same.begin(), same.end());
    }
    std::sort(layers.begin(), layers.end());
    return layers;
}

Model apply(const Model& model, Step& step) {
    const Options& options = step.options;
    const auto slots = shared_slots(options, *model.family);
    const Ffns ffns(model, slots);
    const size_t units = ffns.stored().size();
    // To the nearest, as in Table 3: 30 % of 32 layers are 10.
    const auto count =
        static_cast<size_t>(std::llround(options.number("ratio") * static_cast<double>(units)));
    json details = {{"unit", "ffn"}, {"units", units}};
    Model out = model;
    const std::vector<Match> selected = choose(model, ffns, count, step, details);
    if (options.text("match") == "none") {
        const auto layers = layers_of(model, ffns, selected);
        for (const size_t p : layers) remove_ffn(out, p);
        details["dropped"] = layers;
        step.report.lines.push_back(fmt::format("control: FFNs left out of layers {}", layers_text(layers)));
    } else {
        const auto replacements = resolve(selected, Chain::root);
        for (const auto& [unit, source] : replacements) {
            for (const size_t p : ffns.equal(model, unit.layer)) take_over(out, p, source.layer, slots);
        }
        report_pairs(selected, replacements, step.report, details);
    }
    if (!selected.empty()) out.drop_unreferenced();
    step.report.details = details.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
Whole FFNs of later layers take over the weights of the most similar FFN of an earlier layer; no training.

**Matching.** Each FFN is compared with all FFNs of earlier layers by the cosine of its gate, up and down weights, flattened
into one vector (families without a gate: up and down). Its best match has the largest cosine; of equal ones it is the
first. The paper finds that whole FFNs work better than any part of them. Cosines are computed in float64.

**Sharing.** The `ratio` x layers FFNs with the largest cosines take over the weights of their match. The number is rounded
to the nearest (Table 3's 70.33 % of Llama-2-7B are 10 of 32 layers). The earlier FFN is kept; where it is itself replaced,
the copy takes the one that is really stored. `slots` limits what is shared (`ffn.gate,ffn.up` leaves each layer its down
projection); the match always uses all matrices. Norms stay with each layer, biases go with their matrix.

**With heads.** Table 3's second line of each model is `direct_share` at 30 % and this method at 30 %, as two steps. The paper
does not say whether one choice depends on the other; here it does not.

**Controls.** `match=random`: the same FFNs, each with a random earlier one (`seed`). `match=none`: the same FFNs left out,
with their norms.

**What to expect.** FFNs of different layers are even less alike than heads: cosines up to 0.006 in SmolLM2-135M, where 30 %
raise the perplexity from 21 to 94528. Without training afterwards this method destroys a model; measure.

**Stacking.** Layers that already have the same FFN, in a loop for instance, change together, or not at all when `layers`
leaves one of them out. FFNs of different sizes (pruned ones) and FFNs made of factors cannot be shared. For a bare
config.json only sizes are known, and the pairs are placeholders.
)";

}  // namespace

extern const Method method;
const Method method = {
    "ffn_share",
    "share whole FFNs across layers, by similarity of their weights",
    "Head-wise Shareable Attention for Large Language Models, section 5.3, Table 3",
    kDocumentation + 1,
    {
        {"ratio", OptionSpec::Kind::number, "0.3", "part of all FFNs to be replaced", 0.0, 1.0},
        {.name = "match",
         .kind = OptionSpec::Kind::choice,
         .fallback = "weights",
         .help = "cosine of the weights; or a control: random former FFNs, or none (FFNs left out)",
         .choices = {"weights", "random", "none"}},
        slots_option("ffn", "matrices that are shared, such as ffn.gate,ffn.up"),
        layers_option(),
        seed_option("of match=random"),
    },
    apply,
};

}  // namespace refold::ffn_share_method
