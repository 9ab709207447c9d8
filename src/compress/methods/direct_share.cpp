#include "compress/methods/direct_share.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "compress/heads.h"
#include "compress/selection.h"
#include "core/error.h"
#include "core/text.h"

namespace refold {
namespace direct_share {
namespace {

using nlohmann::json;

MatrixOfEach rows_of(const Model& model, const HeadUnits& units, Slot slot) {
    const int64_t head_dim = model.config.head_dim;
    MatrixOfEach rows;
    for (const Unit& unit : units.stored()) {
        auto& blocks = rows.emplace_back();
        for (const HeadRef& head : units.heads_of(unit, slot))
            blocks.push_back({head.tensor, head.head * head_dim, head_dim});
    }
    return rows;
}

std::vector<double> gram_of(const Model& model, const HeadUnits& units, const std::vector<Slot>& on,
                            const MatchMemory& memory) {
    std::vector<MatrixOfEach> matrices;
    for (const Slot slot : on) matrices.push_back(rows_of(model, units, slot));
    return gram_matrix(model, matrices, "matching " + format_count(units.stored().size()) + " heads", memory);
}

std::vector<Slot> both(const std::vector<Slot>& a, const std::vector<Slot>& b) {
    std::set<Slot> slots(a.begin(), a.end());
    slots.insert(b.begin(), b.end());
    return {slots.begin(), slots.end()};
}

// What is compared, and what is shared by it.
struct Part {
    std::string name;  // empty where there is only one
    std::vector<Slot> on, shared;
};

std::vector<Slot> slots_of(const std::string& letters) {
    std::vector<Slot> slots;
    for (const char letter : letters) slots.push_back(kQkvo[std::string("qkvo").find(letter)]);
    return slots;
}

std::vector<Part> parts_of(const std::string& match, const std::string& share) {
    if (match == "separate") {
        const bool output = share == "qkvo";
        return {{"q", {Slot::attn_q}, {Slot::attn_q}},
                {"k", {Slot::attn_k}, {Slot::attn_k}},
                {"v", {Slot::attn_v}, slots_of(output ? "vo" : "v")}};
    }
    const bool control = match == "random" || match == "none";
    return {{"", slots_of(control ? "qk" : match), slots_of(share)}};
}

void check_combination(const Options& options, size_t positions) {
    const bool latter = options.text("keep") == "latter", root = options.text("chain") == "root";
    if (options.text("match") == "none" && (latter || !root || options.text("share") != "qkvo"))
        fail(ErrorCode::usage, "direct_share",
             "match=none leaves whole heads out and copies nothing: keep, chain and share have no meaning "
             "with it - leave them at former, root and qkvo");
    if (latter && !root)
        fail(ErrorCode::usage, "direct_share",
             "keep=latter makes one tensor of all heads that are connected, so there are no chains to treat: "
             "it goes with chain=root only");
    if (latter && parse_layers(options.text("layers"), positions).size() != positions)
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
    if (model.topology.positions.size() != step.original.topology.positions.size() ||
        now.n_head_kv != then.n_head_kv || now.heads_kv != then.heads_kv)
        fail(
            ErrorCode::usage, "direct_share",
            "matching=original: an earlier step has changed the number of layers or heads, so the original's "
            "matches do not fit - use matching=model");
    return step.original;
}

// The heads that a part replaces and what by, with the report of how they were found.
std::vector<Match> choose(const Model& model, const Part& part, size_t count, Step& step, json& details) {
    const Options& options = step.options;
    StepReport& report = step.report;
    const auto layers = parse_layers(options.text("layers"), model.topology.positions.size());
    need_stored(model, both(part.on, part.shared), layers, "direct_share");
    const HeadUnits units(model, both(part.on, part.shared), part.shared);
    const std::set<size_t> wanted(layers.begin(), layers.end());
    std::vector<bool> replaceable;
    for (const Unit& unit : units.stored()) replaceable.push_back(units.lies_in(unit, wanted));

    std::vector<Match> selected;
    if (model.shapes_only) {
        selected = placeholders(units.stored(), replaceable, count);
        report_placeholders(report, details);
    } else {
        const auto matches =
            refold::best_matches(model, units.stored(), gram_of(model, units, part.on, {}), replaceable);
        details["candidates"] = matches.size();
        selected = largest(matches, count);
        report_similarities(matches, selected, "heads", report, details);
    }
    if (selected.size() < count) {
        report.lines.push_back(
            fmt::format("{} heads asked for, {} can be replaced (layer 0, what is already shared and layers "
                        "that were not named cannot)",
                        count, selected.size()));
    }
    if (options.text("match") != "random") return selected;
    report.lines.emplace_back(
        "control: each takes a random earlier head; cosines are those of its best match");
    return with_random_formers(selected, units.stored(), static_cast<uint64_t>(options.integer("seed")));
}

void report_dropped(const std::set<Unit>& units, StepReport& report, json& details) {
    json& list = details["dropped"] = json::array();
    std::vector<std::string> names;
    for (const Unit& unit : units) {
        list.push_back({unit.position, unit.index});
        names.push_back(fmt::format("{}.{}", unit.position, unit.index));
    }
    report.lines.push_back(
        fmt::format("control: {} heads left out (layer.head): {}", units.size(), fmt::join(names, ", ")));
}

// One part's choice applied to `out`; `model` is what was compared.
void apply_part(const Model& model, const Part& part, size_t count, Step& step, Model& out, json& details) {
    const Options& options = step.options;
    const std::vector<Match> selected = choose(compared(model, step), part, count, step, details);
    std::vector<Requantised> requantised;
    if (options.text("match") == "none") {
        std::set<Unit> units;
        for (const auto& match : selected) units.insert(match.later);
        out = drop_heads(out, units, requantised);
        report_dropped(units, step.report, details);
    } else {
        const auto replacements = options.text("keep") == "latter"
                                      ? resolve_latter(selected)
                                      : resolve(selected, chain_of(options.text("chain")));
        out = share_heads(out, replacements, part.shared, requantised);
        report_pairs(selected, replacements, step.report, details);
    }
    report_requantised(requantised, "share=qkv leaves the output projection as it is", step.report, details);
}

Model apply(const Model& model, Step& step) {
    const Options& options = step.options;
    StepReport& report = step.report;
    check_combination(options, model.topology.positions.size());
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
    for (const Part& part : parts_of(options.text("match"), options.text("share"))) {
        if (part.name.empty()) {
            apply_part(model, part, count, step, out, details);
        } else {
            report.lines.push_back(fmt::format("W{} by itself:", part.name));
            apply_part(model, part, count, step, out, details["parts"][part.name]);
        }
    }
    report.lines.emplace_back(
        "Heads of different layers are nearly orthogonal in plain cosine (at most about 0.06 in Llama-2-7B): "
        "the method takes the largest, however small; a threshold such as 0.9 would select nothing.");
    report.details = details.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
Heads of later layers take over the weights of the most similar head of an earlier layer; no training.

**Algorithm 1, matching.** Every head of layers 1 to L-1 (counted from 0) is compared with all heads of all earlier
layers by the cosine of its query and key weights, concatenated and flattened into one vector. Its best match is the
largest cosine; of equal ones the first in order. Heads of the same layer are never compared, and layer 0 is never
replaced. Cosines are float64, from the stored weights. No calibration text is needed: the paper's appendix speaks of 10
samples, but the cosine of weights has no use for them and the authors' program takes none.

**Match functions** (`match`, Table 12): `qk` (the paper's choice), `q`, `k`, `v`, `qkv`; `separate` matches and shares
Wq, Wk and Wv each on its own, three selections of `ratio` x heads each, and Wo follows the selection by Wv, whose
outputs it reads.

**Controls.** `match=random`: the heads that `qk` selects, each taking a random earlier head (`seed`).
`match=none`: the same heads left out altogether: smaller tensors and a smaller KV cache, no sharing. What
sharing is worth shows only beside these.

**Algorithm 2, sharing.** The `ratio` x (all heads of all layers) heads with the largest cosines take the weights of their
match: Wq, Wk, Wv and, with `share=qkvo`, the head's columns of Wo. `ratio` counts layer 0's heads too, as the authors'
program does; rounds of a loop count once. Shared heads exist once in the file and once in memory.

**Which one is kept** (`keep`, Table 13): `former`, the earlier head. With `latter`, all heads that are connected by
selected pairs take the weights of the one in the latest layer (of two there, the first): the paper does not say what
happens when several later heads match one former, and only so are as many heads saved as with `former`.

**Grouped-query attention.** The paper has one key and one value head per query head. Where several query heads share one,
the unit of sharing is the whole KV group: its query heads, in their order, its key head and its value head (and their
columns of Wo). "Head" means that group then, in `ratio` as well.

**Wo.** The paper's text speaks of Wq, Wk and Wv only (`share=qkv`), but its parameter counts (Table 3: 6.74 B to 6.09 B
at 30 %) and the authors' program include Wo (`share=qkvo`, the default).

**Chains.** When the head to be copied is itself replaced:
- `root`: the copy follows to the head that is really stored. Algorithm 2 in ascending order does the same, and only so
  does the ratio hold exactly.
- `one-hop`: the copy gets the matched head's original weights, which stay stored for it; less is saved.
- `repo`: as the authors' published program: a replaced head that another one copies takes its own weights back, so
  fewer heads change than were selected.

**Layers.** Only heads of `layers` are replaced; their match may lie in any earlier layer. A head that several
layers have in common, in a loop for one, is replaced in all of them or not at all.

**After training.** `matching=original` compares the weights that the model had before the first step: PostShare's last step
takes the pairs that `train` with `objective=postshare` has made alike, as the authors' program reuses its match file.

**What similarity to expect.** Heads of different layers are nearly orthogonal: cosines stay below about 0.06 in
Llama-2-7B. The method takes the largest, however small, so expect a real loss, which grows quickly with the ratio;
measure it with `refold eval ppl` before and after.

**Quantised models.** Rows are copied without requantising. Columns of Wo can be cut only between quantisation blocks;
tensors where that is impossible are requantised (Q8_0, or F16), and the report names them.

**Stacking.** A head that an earlier step already shares counts as the head it takes its weights from: it is not replaced
again, and follows when that one is. Layers whose attention an earlier step made into factors have no heads to share:
leave them out with `layers`.

Biases of a replaced head are copied from its source (they are too small to share). Of a bare config.json only sizes
can be told: pairs are placeholders then.
)";

}  // namespace

std::vector<Match> best_matches(const Model& model, const std::vector<Slot>& on,
                                const std::vector<Slot>& shared, const MatchMemory& memory) {
    const HeadUnits units(model, both(on, shared), shared);
    return refold::best_matches(model, units.stored(), gram_of(model, units, on, memory),
                                std::vector<bool>(units.stored().size(), true));
}

}  // namespace direct_share

const Method kDirectShare = {
    "direct_share",
    "share whole attention heads across layers, by similarity of their weights",
    "Head-wise Shareable Attention for Large Language Models, section 4, Algorithms 1 and 2",
    direct_share::kDocumentation + 1,
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
        {"seed", OptionSpec::Kind::integer, "0", "of match=random", 0},
    },
    direct_share::apply,
};

}  // namespace refold
