// DirectShare: attention heads that resemble a head of an earlier layer take over its weights.
// "Head-wise Shareable Attention for Large Language Models", section 4 and appendix A (Algorithms 1 and 2).
#include <algorithm>
#include <nlohmann/json.hpp>

#include "compress/head_sharing/head_choice.h"
#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "compress/rewrite/heads.h"
#include "core/error.h"
#include "core/text.h"

namespace refold::direct_share_method {

using namespace direct_share;

namespace {

using nlohmann::json;

std::vector<Slot> slots_of(const std::string& letters) {
    std::vector<Slot> slots;
    for (const char letter : letters) slots.push_back(kQkvo[std::string("qkvo").find(letter)]);
    return slots;
}

std::vector<Selection> selections_of(const std::string& match, const std::string& share) {
    if (match == "separate") {
        const bool output = share == "qkvo";
        return {{"q", {Slot::attn_q}, {Slot::attn_q}},
                {"k", {Slot::attn_k}, {Slot::attn_k}},
                {"v", {Slot::attn_v}, slots_of(output ? "vo" : "v")}};
    }
    const bool control = match == "random" || match == "none";
    return {{"", slots_of(control ? "qk" : match), slots_of(share)}};
}

void check_combination(const Options& options, size_t layers) {
    check_calibrated(options);
    const bool latter = options.text("keep") == "latter", root = options.text("chain") == "root";
    if (options.text("match") == "none" && (latter || !root || options.text("share") != "qkvo"))
        fail(ErrorCode::usage, "direct_share",
             "match=none leaves whole heads out and copies nothing: keep, chain and share have no meaning "
             "with it - leave them at former, root and qkvo");
    if (latter && !root)
        fail(ErrorCode::usage, "direct_share",
             "keep=latter makes one tensor of all heads that are connected, so there are no chains to treat: "
             "it goes with chain=root only");
    if (latter && parse_layers(options.text("layers"), layers).size() != layers)
        fail(ErrorCode::usage, "direct_share",
             "keep=latter replaces heads of earlier layers, whichever these are: it goes with layers=all "
             "only");
}

Chain chain_of(const std::string& name) {
    return name == "root" ? Chain::root : name == "one-hop" ? Chain::one_hop : Chain::repo;
}

// The model whose heads are compared.
const Model& compared(const Model& model, const Step& step) {
    if (step.options.text("matching") == "model") return model;
    const ModelConfig &now = model.config, &then = step.original.config;
    if (model.topology.layers.size() != step.original.topology.layers.size() ||
        now.n_head_kv != then.n_head_kv || now.heads_kv != then.heads_kv)
        fail(
            ErrorCode::usage, "direct_share",
            "matching=original: an earlier step has changed the number of layers or heads, so the original's "
            "matches do not fit - use matching=model");
    return step.original;
}

void report_dropped(const std::set<Unit>& units, StepReport& report, json& details) {
    json& list = details["dropped"] = json::array();
    std::vector<std::string> names;
    for (const Unit& unit : units) {
        list.push_back({unit.layer, unit.index});
        names.push_back(fmt::format("{}.{}", unit.layer, unit.index));
    }
    report.lines.push_back(
        fmt::format("control: {} heads left out (layer.head): {}", units.size(), fmt::join(names, ", ")));
}

// Applies one selection to `out`; heads of `model` are compared.
void apply_selection(const Model& model, const Selection& selection, size_t count, Step& step, Model& out,
                     json& details) {
    const Options& options = step.options;
    const std::vector<Match> selected = choose(model, compared(model, step), selection, count, step, details);
    std::vector<Requantized> requantized;
    if (options.text("match") == "none") {
        std::set<Unit> units;
        for (const auto& match : selected) units.insert(match.later);
        out = drop_heads(out, units, requantized);
        report_dropped(units, step.report, details);
    } else {
        const auto replacements = options.text("keep") == "latter"
                                      ? resolve_latter(selected)
                                      : resolve(selected, chain_of(options.text("chain")));
        const auto maps = maps_of(model, replacements, step, details);
        out = replaced(out, replacements, selection.shared, maps, requantized);
        report_pairs(selected, replacements, step.report, details);
    }
    report_requantized(requantized, "share=qkv leaves the output projection as it is", step.report, details);
}

Model apply(const Model& model, Step& step) {
    const Options& options = step.options;
    StepReport& report = step.report;
    check_combination(options, model.topology.layers.size());
    const size_t units = count_head_units(model), count = part_of(options.number("ratio"), units);
    const int64_t group = model.config.q_per_kv();
    json details = {{"unit", group > 1 ? "kv_group" : "head"}, {"units", units}};
    if (group > 1) {
        report.lines.push_back(
            fmt::format("grouped-query attention: what is shared is a key/value head with its {} query "
                        "heads; \"head\" below means such a group ({} per layer)",
                        group, model.config.n_head_kv));
    }
    Model out = model;
    for (const Selection& selection : selections_of(options.text("match"), options.text("share"))) {
        if (selection.name.empty()) {
            apply_selection(model, selection, count, step, out, details);
        } else {
            report.lines.push_back(fmt::format("W{} by itself:", selection.name));
            apply_selection(model, selection, count, step, out, details["parts"][selection.name]);
        }
    }
    if (!is_calibrated(options))
        report.lines.emplace_back(
            "Heads of different layers are nearly orthogonal in plain cosine (at most about 0.06 in "
            "Llama-2-7B): "
            "the method takes the largest, however small; a threshold such as 0.9 would select nothing.");
    report.details = details.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
Heads of later layers take over the weights of the most similar head of an earlier layer; no training.

**Algorithm 1, matching.** Each head of layers 1 to L-1 (from 0) is compared with all heads of all earlier layers, by the
cosine of its query and key weights, flattened into one vector. Its best match is the one with the largest cosine; of equal
ones the first in order. Heads of the same layer are never compared, and layer 0 is never replaced. Cosines are computed in
float64 from the stored weights. No calibration text is needed: the paper's appendix mentions 10 samples, but the cosine of
weights does not depend on them and the authors' program reads none. `metric`, `align` and `select` are refold's additions;
their defaults are the paper's method.

**Match functions** (`match`, Table 12): `qk` (the paper's choice), `q`, `k`, `v`, `qkv`. `separate` matches and shares Wq,
Wk and Wv each by itself: three selections of `ratio` x heads. Wo follows the selection by Wv, whose outputs it reads.

**Controls.** `match=random`: the heads that `qk` selects, each with a random earlier head (`seed`). `match=none`: the same
heads left out: smaller tensors, a smaller KV cache, and no sharing. The worth of sharing shows only beside these two.

**Algorithm 2, sharing.** The `ratio` x (all heads of all layers) heads with the largest cosines take over the weights of
their match: Wq, Wk, Wv and, with `share=qkvo`, the head's columns of Wo. `ratio` counts layer 0's heads too, as in the
authors' program; in a looped model, heads of the stored layers count once. A shared head exists once in the file and once
in memory. As printed, Algorithm 2 puts the pairs into a dictionary whose key is the head in the earlier layer (lines 6 to 9):
of several later heads that match one earlier head, each would overwrite the one before, and only the last would share. refold
keeps all pairs, as the authors' program does; otherwise fewer heads than `ratio` would be shared.

**Which one is kept** (`keep`, Table 13): `former`, the earlier head. With `latter`, all heads that are connected by selected
pairs take the weights of the one in the latest layer (of two there, the first). The paper does not say what happens when
several later heads match one former head; this reading saves as many heads as `former`.

**Grouped-query attention.** The paper has one key and one value head per query head. Where several query heads share a key
head, the unit of sharing is the whole KV group: its query heads in their order, its key head, its value head, and their
columns of Wo. "Head" then means such a group, also in `ratio`.

**Wo.** The paper's text speaks of Wq, Wk and Wv only (`share=qkv`), but its parameter counts (Table 3: 6.74 B to 6.09 B at
30 %) and the authors' program include Wo (`share=qkvo`, the default).

**Chains** (`chain`): when the head to be copied is itself replaced,
- `root`: the copy takes the weights of the head that is really stored. Algorithm 2 in ascending order does the same, and
  only then does the ratio hold exactly.
- `one-hop`: the copy gets the matched head's original weights, which stay stored for it; less is saved.
- `repo`: as in the authors' published program, a replaced head that another one copies gets its own weights back, so that
  fewer heads change than were selected.

**Layers.** Only heads of `layers` are replaced; their match may lie in any earlier layer. A stored head that several layers
use, in a loop for instance, is replaced in all of them or not at all.

**After training.** `matching=original` compares the weights that the model had before the first step: the last step of
PostShare uses the pairs that `train` with `objective=postshare` has made alike, as the authors' program reads its match file
again.

**What is compared** (`metric`). `weights`: the cosines above, as in the paper. `output`: what heads compute on calibration
text. The earlier head is run in the place of the later one, on the input that the later one has in its layer; the cosine is
that of what the two add to the residual stream (before a norm of the attention's output), summed over tokens, not centred:
a mean that differs is an error as well. With `share=qkv` the earlier head's outputs go through the later one's columns of
Wo, as they will. Every symmetry of a head drops out by itself. The first 4096 tokens of the text are compared, layer by
layer; that costs the attention of one layer for each pair of layers, about (number of layers) / 6 passes through the model.
Not for ALiBi, where what a head computes depends on its number.

**Alignment** (`align=symmetries`, with `share=qkv`). A head computes the same when each rotated pair of Wq's rows, as a
complex number, is multiplied by some z and Wk's pair by 1 / conj(z) (a common rotation, and a scale that one gains and the
other loses), and when Wv is multiplied by an invertible matrix and the head's columns of Wo by its inverse.
- Matching is up to these. With `metric=weights` it is the cosine of Wq and Wk after the best rotations, of heads scaled so
  that both are equally large in each pair; Wv does not count, because Wo is solved for it. The whole head must be rotated, and
  there may be no norms of queries and keys. With `metric=output` it is the largest cosine over all columns of Wo, which
  covers every kind of head.
- Then the later head takes the earlier one's Wq, Wk and Wv as they are stored, and its own columns W of Wo become W M. M maps
  what the earlier head computes on the later one's input to what the later head computed, by least squares over the
  calibration text (Gram matrices; the ridge, towards zero, by the held-out part). For a head that is equal up to symmetry,
  M is the inverse change of values, and nothing changes but rounding; for any other it is the best that this head's columns
  can do by themselves. A following `refit` solves all columns of a layer together, and makes most of M's work its own.
- Heads whose columns of Wo other layers use (in a loop) stay. Solved columns keep their type, rounded to nearest.

**Which heads** (`select`). `similarity`: the largest cosines. `sensitivity`: each head alone takes over its match's weights
(with `align` its output mapped), and the divergence of the predictions is measured on 1024 tokens, in the final residual
stream, as `narrow` and `fit` do it; the `ratio` x heads with the smallest divergence are taken. A head that several layers
use counts in each. The measurements do not depend on `ratio`.

These three need calibration text (`--calib FILE --calib-tokens N`), and keep their results, so that an interrupted run resumes.
In a dry run, or for a bare config.json, the pairs are placeholders.

**What similarity to expect.** Heads of different layers are nearly orthogonal: cosines stay below about 0.06 in Llama-2-7B.
The method takes the largest, however small, so expect a real loss, which grows quickly with the ratio. Measure it with
`refold eval ppl` before and after.

**Quantized models.** Rows are copied without requantizing. Columns of Wo can be cut only between quantization blocks;
tensors where that is impossible are requantized (Q8_0, or F16), and the report names them.

**Stacking.** A head that an earlier step already shares counts as the head whose weights it uses: it is not replaced again,
and follows when that one is replaced. Layers whose attention an earlier step made into factors have no heads to share: leave
them out with `layers`.

Biases of a replaced head are copied from its source (they are too small to share). For a bare config.json only sizes are
known, and the pairs are placeholders.
)";

}  // namespace

extern const Method method;
const Method method = {
    "direct_share",
    "share whole attention heads across layers, by similarity of their weights",
    "Head-wise Shareable Attention for Large Language Models, section 4, Algorithms 1 and 2",
    kDocumentation + 1,
    {
        {"ratio", OptionSpec::Kind::number, "0.3", "part of all heads (KV groups under GQA) to be replaced",
         0.0, 1.0},
        {.name = "match",
         .kind = OptionSpec::Kind::choice,
         .fallback = "qk",
         .help = "weights whose cosine decides; or a control: random former heads, or none (heads left out)",
         .choices = {"qk", "q", "k", "v", "qkv", "separate", "random", "none"}},
        {.name = "share",
         .kind = OptionSpec::Kind::choice,
         .fallback = "qkvo",
         .help = "weights that are shared; qkv leaves the output projection alone",
         .choices = {"qkvo", "qkv"}},
        {.name = "keep",
         .kind = OptionSpec::Kind::choice,
         .fallback = "former",
         .help = "whose weights both heads of a pair have in the end",
         .choices = {"former", "latter"}},
        {.name = "chain",
         .kind = OptionSpec::Kind::choice,
         .fallback = "root",
         .help = "what is copied from a head that is itself replaced",
         .choices = {"root", "one-hop", "repo"}},
        layers_option(),
        {.name = "matching",
         .kind = OptionSpec::Kind::choice,
         .fallback = "model",
         .help = "whose weights are compared: the model's, or those before the first step",
         .choices = {"model", "original"}},
        seed_option("of match=random"),
        {.name = "metric",
         .kind = OptionSpec::Kind::choice,
         .fallback = "weights",
         .help = "what is compared: weights (match), or what heads compute on calibration text",
         .choices = {"weights", "output"}},
        {.name = "align",
         .kind = OptionSpec::Kind::choice,
         .fallback = "none",
         .help = "heads are compared, and stand in for each other, up to their symmetries (share=qkv)",
         .choices = {"none", "symmetries"}},
        {.name = "select",
         .kind = OptionSpec::Kind::choice,
         .fallback = "similarity",
         .help = "the most similar heads, or those whose replacement changes predictions least",
         .choices = {"similarity", "sensitivity"}},
    },
    apply,
    is_calibrated,
};

}  // namespace refold::direct_share_method
