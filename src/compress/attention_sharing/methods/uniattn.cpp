// UniAttn: Softmax Unification in Attention, the softmax activations of a superblock's first layer serve all.
#include <nlohmann/json.hpp>

#include "compress/attention_sharing/softmax_similarity.h"
#include "compress/attention_sharing/superblocks.h"
#include "compress/compensation/compensate.h"
#include "compress/method/lazy.h"
#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "compress/method/work.h"
#include "core/error.h"

namespace refold::uniattn_method {
namespace {

using nlohmann::json;

LayerSimilarity measured(const Model& model, Step& step) {
    const size_t layers = model.topology.layers.size();
    const auto found = step.work->results_of_all({kSoftmaxSimilarity, {{"step", step.identity}}}, [&] {
        const auto measured = softmax_similarity(model, *step.calibration, step.threads);
        const auto n = static_cast<int64_t>(layers);
        return Arrays{{"similarity", {{n, n}, {measured.values.begin(), measured.values.end()}}}};
    });
    const auto values = lazy::floats(found.at("similarity"), nullptr);
    return {layers, {values.begin(), values.end()}};
}

// Superblocks by similarity, with as many reusing layers as the options say. A dry run measures nothing and
// takes the latest layers.
Superblocks adaptive(const Model& model, Step& step, json& details) {
    const Options& options = step.options;
    const Topology& topology = model.topology;
    const size_t n_layer = topology.layers.size();
    const auto layers = parse_layers_or_half(options.text("layers"), n_layer);
    auto reusing = static_cast<size_t>(options.integer("reusing"));
    if (reusing == 0) reusing = reusing_layers(superblocks_of(options, n_layer)).size();
    const auto owns = [&](size_t p) { return topology.has(p, Slot::attn_o) && topology.source(p).own(); };
    const auto can_share = [&](size_t later, size_t first) {
        return owns(later) && owns(first) && !topology.lends_probabilities(later) &&
               !topology.lends_kv(later) &&
               model.config.n_head_kv_of(later) == model.config.n_head_kv_of(first);
    };
    LayerSimilarity similarity{n_layer, std::vector<double>(n_layer * n_layer)};
    if (step.dry_run()) {
        for (size_t p = 0; p < n_layer; ++p)
            std::fill_n(similarity.values.begin() + static_cast<ptrdiff_t>(p * n_layer), n_layer,
                        static_cast<double>(p));
        step.report.lines.emplace_back(
            "dry run: which layers reuse is chosen with calibration text; here they are the latest ones");
    } else {
        similarity = measured(model, step);
    }
    const Superblocks blocks = most_similar_superblocks(similarity, layers, reusing, can_share);
    if (step.dry_run()) return blocks;
    for (const LayerRange& block : blocks) {
        for (size_t p = block.first + 1; p < block.last; ++p)
            details["similarity"].push_back(
                {{"layer", p}, {"source", block.first}, {"similarity", similarity(p, block.first)}});
    }
    return blocks;
}

Model apply(const Model& model, Step& step) {
    const Options& options = step.options;
    const std::string& solver = options.text("compensation");
    const auto settings = compensation_settings(options, solver);
    json details = json::object();
    check_can_share(model, {}, "uniattn");
    const Superblocks blocks = options.text("grouping") == "adaptive"
                                   ? adaptive(model, step, details)
                                   : superblocks_of(options, model.topology.layers.size());
    Model out = share_attention(model, blocks, SharedAttention::probabilities, "uniattn");
    const auto reusing = reusing_layers(blocks);
    step.report.lines.push_back(fmt::format("attention probabilities of layers {} serve {}",
                                            superblocks_text(blocks), layers_text(reusing)));
    step.report.lines.push_back("saves " + saving_text(model, out));
    details["superblocks"] = superblocks_list(blocks);
    details["reusing"] = reusing;
    if (solver != "none")
        out = compensate(out, step, settings, layers_to_compensate(step.original, out), details);
    step.report.details = details.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
Consecutive layers form superblocks. The first layer of a superblock computes scores and softmax; the others weight their own
values with its probabilities (equation 3). They have no Wq and Wk, compute no scores and cache values only. With
grouped-query attention, each query head uses the probabilities of the same head.

**Which layers.** `superblocks` names them (18-21,22-25: first and last layer, from 0). Otherwise there are `count`
superblocks of `size` layers, the last one ending with the last layer; by default as many as fit into the top half, as in the
paper (Table 6; it leaves out the last layer of Gemma 2, which `superblocks` can express). `grouping=adaptive` (Table 5)
measures the similarity of the layers' probabilities: the cosine of the probabilities of a sequence, all heads and tokens as
one vector, as the mean over the sequences of the calibration text. It takes the superblocks among `layers` in which `reusing`
layers have the largest sum of similarities to the first layer of their superblock; the choice is exact. `reusing=0`: as many
as `size` and `count` (or `superblocks`) give.

**Compensation** (`compensation`, section 3.2). Without training the result is much worse than the original. W_c, a linear map
of the attention's normed input that is added to its output, makes up for part of that:
- `none`: no W_c;
- `lsq`: least squares over all tokens of the calibration text;
- `paper`: the pseudo-inverse of means over sequences (Theorem 3.1), in one or (`averages`) several parts of the
  text (appendix F, Table 13);
- `zero`: to be trained.

This is the method `compensation` as part of this step, with its options `place`, `rank`, `ridge`, `averages` and `type`. Without GQA a
full W_c has as many numbers as Wk, half of what dropping Wq and Wk saves; with GQA it has most of that. `rank` makes it
smaller. The report shows both numbers. `lsq`, `paper` and `grouping=adaptive` need calibration text
(`--calib FILE --calib-tokens N`).

Only for decoders without prefix keys; the layers of a superblock must have the same number of heads. Share attention first
and weights afterwards: weights that an earlier step shared or factored are lost with the slots that used them.
)";

std::vector<OptionSpec> options() {
    auto specs = superblock_options();
    specs.push_back({.name = "grouping",
                     .kind = OptionSpec::Kind::choice,
                     .fallback = "fixed",
                     .help = "fixed: as the options above say; adaptive: by similarity of the probabilities",
                     .choices = {"fixed", "adaptive"}});
    specs.push_back({"reusing", OptionSpec::Kind::integer, "0",
                     "adaptive: layers that reuse another one's probabilities; 0: as many as fixed", 0});
    specs.push_back({.name = "layers",
                     .fallback = "all",
                     .help = "adaptive: layers to choose from: 15-29, all or top half"});
    specs.push_back({.name = "compensation",
                     .kind = OptionSpec::Kind::choice,
                     .fallback = "none",
                     .help = "how W_c is solved",
                     .choices = {"none", "zero", "lsq", "paper"}});
    const auto more = compensation_options();
    specs.insert(specs.end(), more.begin(), more.end());
    return specs;
}

}  // namespace

extern const Method method;
const Method method = {
    "uniattn",
    "consecutive layers reuse the attention probabilities of the first one",
    "UniAttn: Reducing Inference Costs via Softmax Unification for Post-Training LLMs, sections 3.2 and 4.1",
    kDocumentation + 1,
    options(),
    apply,
    [](const Options& options) {
        return options.text("grouping") == "adaptive" || is_solved(options.text("compensation"));
    },
};

}  // namespace refold::uniattn_method
