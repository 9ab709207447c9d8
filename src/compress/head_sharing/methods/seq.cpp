// Consecutive layers of the latter part share their weights: the layer-wise baseline of head sharing.
// "Head-wise Shareable Attention for Large Language Models", appendix G.2, after Takase and Kiyono's
// SEQUENCE.
#include <nlohmann/json.hpp>

#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "compress/rewrite/equal_size.h"
#include "core/error.h"
#include "model/accounting.h"

namespace refold::seq_method {
namespace {

using Group = std::vector<size_t>;

// Groups of consecutive layers that share: of the named layers, or of the latter part of the model (with
// `ratio`, of all of it).
std::vector<Group> groups_of(const Options& options, size_t n_layer) {
    const auto size = static_cast<size_t>(options.integer("group"));
    std::vector<size_t> layers;
    if (options.text("layers") == "latter") {
        const double part = options.number("ratio") > 0 ? 1 : options.number("part");
        const size_t count = part_of(part, n_layer) / size * size;
        for (size_t p = n_layer - count; p < n_layer; ++p) layers.push_back(p);
    } else {
        layers = parse_layers(options.text("layers"), n_layer);
    }
    if (layers.size() % size != 0)
        fail(ErrorCode::usage, "seq", "layers: {} layers are not whole groups of {}", layers.size(), size);
    std::vector<Group> groups;
    for (size_t i = 0; i < layers.size(); i += size) {
        groups.emplace_back(layers.begin() + static_cast<ptrdiff_t>(i),
                            layers.begin() + static_cast<ptrdiff_t>(i + size));
        if (groups.back().back() - groups.back().front() != size - 1)
            fail(ErrorCode::usage, "seq", "layers: {} are not consecutive, so they are no group",
                 layers_text(groups.back()));
    }
    return groups;
}

// Whether the slot is shared under the options `share` and `norms`.
bool is_shared(Slot slot, const std::string& share, bool norms) {
    if (is_prefix(slot)) return false;
    const SlotProperties& s = properties(slot);
    const bool map = (s.kind == SlotKind::matrix || s.kind == SlotKind::bias) &&
                     (s.module == SlotModule::attention || s.module == SlotModule::ffn);
    if (share == "layer") return map || norms;
    return map && s.projection && (share == "qkvo" || *s.projection != Projection::output);
}

Slots shared_slots(const Slots& slots, const std::string& share, bool norms) {
    Slots out;
    for (const auto& entry : slots) {
        if (is_shared(entry.first, share, norms)) out.insert(entry);
    }
    return out;
}

void need_equal_sizes(const Model& model, size_t former, size_t later, const std::string& share) {
    const ModelConfig& c = model.config;
    const bool heads = c.n_head_kv_of(former) == c.n_head_kv_of(later) && c.n_head_kv_of(former) > 0;
    const bool ffn = c.n_ff_of(former) == c.n_ff_of(later) && c.n_ff_of(former) > 0;
    if (!heads || (share == "layer" && !ffn))
        fail(
            ErrorCode::unsupported, "seq",
            "layers {} and {} do not have {} of the same size (an earlier step left some of them out) - name "
            "others with 'layers', or do this step first",
            former, later, heads ? "FFNs" : "attention modules");
}

// The later layers of the groups use the weights of the first.
Model shared(const Model& model, const std::vector<Group>& groups, const Options& options) {
    const std::string& share = options.text("share");
    Model out = model;
    for (const Group& group : groups) {
        const Slots source =
            shared_slots(model.topology.layers[group.front()], share, options.text("norms") == "share");
        for (size_t i = 1; i < group.size(); ++i) {
            need_equal_sizes(model, group.front(), group[i], share);
            for (const auto& [slot, expression] : source) out.topology.layers[group[i]][slot] = expression;
        }
    }
    if (out.topology != model.topology) out.drop_unreferenced();
    return out;
}

// As many of the groups, from the last, as bring the model nearest to the size that sharing `ratio` of its
// heads gives.
std::vector<Group> nearest_groups(const Model& model, const std::vector<Group>& groups,
                                  const Options& options) {
    const uint64_t all = account(model).model.parameters,
                   aim = all - parameters_of_heads(model, options.number("ratio"));
    const auto distance = [&](const std::vector<Group>& some) {
        const uint64_t reached = account(shared(model, some, options)).model.parameters;
        return reached > aim ? reached - aim : aim - reached;
    };
    std::vector<Group> best;
    for (uint64_t least = distance(best); best.size() < groups.size();) {
        const std::vector<Group> more(groups.end() - static_cast<ptrdiff_t>(best.size()) - 1, groups.end());
        const uint64_t now = distance(more);
        if (now >= least) break;
        least = now;
        best = more;
    }
    return best;
}

Model apply(const Model& model, Step& step) {
    const Options& options = step.options;
    const std::string& share = options.text("share");
    const double ratio = options.number("ratio");
    std::vector<Group> groups = groups_of(options, model.topology.layers.size());
    if (ratio > 0) groups = nearest_groups(model, groups, options);
    Model out = shared(model, groups, options);
    for (const Group& group : groups)
        step.report.lines.push_back(fmt::format("layers {} share the {} of layer {}", layers_text(group),
                                                share == "layer" ? "weights" : share, group.front()));
    nlohmann::json details = {{"groups", groups}};
    if (ratio > 0) report_equal_size(model, out, ratio, step.report, details);
    step.report.details = details.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
Groups of consecutive layers share weights: the later layers of a group use those of the first. This is layer-wise sharing
(SEQUENCE of Takase and Kiyono) as the paper of head sharing modifies it for large models: only in the latter 60 % of the
layers (`part`), to compare at equal size (Tables 15 and 18).

**Which layers.** The last floor(`part` x layers) layers, without those that do not fill a group, in groups of `group`. `layers`
names the layers instead.

**Equal size** (`ratio`, in place of `part`): as many groups, from the last layer, as come nearest to the size of the model that
has this part of its heads shared. In Llama-2-7B 30 % are 307 of 1024 heads, or 9.6 layers of 32: ten pairs, 13 heads too many,
in the last 20 layers. 10 % are three pairs. The report names the difference.

**What is shared** (`share`). The paper does not say; a comparison at equal ratio suggests the attention modules: `qkvo`
(as in `direct_share`) or `qkv`. `layer` also shares the FFN and, with `norms=share`, the norms; `norms=keep` leaves each
layer its own. Biases go with their matrices; prefix keys and values stay.

Whole slots are tied, whatever expression they are, so this stacks on factors and shared heads. The layers of a group must
have modules of one size.
)";

}  // namespace

extern const Method method;
const Method method = {
    "seq",
    "baseline: consecutive layers share their weights",
    "Head-wise Shareable Attention for Large Language Models, appendix G.2, Tables 15 and 18; Lessons on "
    "Parameter Sharing across Layers in Transformers",
    kDocumentation + 1,
    {
        {"part", OptionSpec::Kind::number, "0.6", "latter part of the layers in which layers share", 0.0,
         1.0},
        {"ratio", OptionSpec::Kind::number, "0",
         "above 0, in place of part: the size that sharing this part of the heads gives, as nearly as whole "
         "groups come",
         0.0, 1.0},
        layers_option("latter"),
        {"group", OptionSpec::Kind::integer, "2", "consecutive layers that share", 1},
        {.name = "share",
         .kind = OptionSpec::Kind::choice,
         .fallback = "qkvo",
         .help = "weights that are shared; layer: attention and FFN",
         .choices = {"qkvo", "qkv", "layer"}},
        {.name = "norms",
         .kind = OptionSpec::Kind::choice,
         .fallback = "share",
         .help = "the norms, with share=layer",
         .choices = {"share", "keep"}},
    },
    apply,
};

}  // namespace refold::seq_method
