// Consecutive layers of the latter part share their weights: the layer-wise baseline of head sharing.
// "Head-wise Shareable Attention for Large Language Models", appendix G.2, after Takase and Kiyono's
// SEQUENCE.
#include <nlohmann/json.hpp>

#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "core/error.h"

namespace refold {
namespace {

using Group = std::vector<size_t>;

// Groups of consecutive layers that share: of the named layers, or of the latter part of the model.
std::vector<Group> groups_of(const Options& options, size_t n_layer) {
    const auto size = static_cast<size_t>(options.integer("group"));
    std::vector<size_t> layers;
    if (options.text("layers") == "latter") {
        const size_t count = part_of(options.number("part"), n_layer) / size * size;
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

Model apply(const Model& model, Step& step) {
    const Options& options = step.options;
    const std::string& share = options.text("share");
    const bool norms = options.text("norms") == "share";
    Model out = model;
    nlohmann::json list = nlohmann::json::array();
    for (const Group& group : groups_of(options, model.topology.layers.size())) {
        const Slots source = shared_slots(model.topology.layers[group.front()], share, norms);
        for (size_t i = 1; i < group.size(); ++i) {
            need_equal_sizes(model, group.front(), group[i], share);
            for (const auto& [slot, expression] : source) out.topology.layers[group[i]][slot] = expression;
        }
        list.push_back(group);
        step.report.lines.push_back(fmt::format("layers {} share the {} of layer {}", layers_text(group),
                                                share == "layer" ? "weights" : share, group.front()));
    }
    if (out.topology != model.topology) out.drop_unreferenced();
    step.report.details = nlohmann::json{{"groups", list}}.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
Groups of consecutive layers share weights: the later layers of a group use those of the first. This is layer-wise sharing
(SEQUENCE of Takase and Kiyono) as the paper of head sharing modifies it for large models: only in the latter 60 % of the
layers (`part`), to compare at equal size (Tables 15 and 18).

**Which layers.** The last floor(`part` x layers) layers, without those that do not fill a group, in groups of `group`. In
pairs, 0.6 removes as many attention modules as `direct_share` at 30 % of the heads. The paper does not say how it gets
10 %; 0.2 gives that. `layers` names the layers instead.

**What is shared** (`share`). The paper does not say; a comparison at equal ratio suggests the attention modules: `qkvo`
(as in `direct_share`) or `qkv`. `layer` also shares the FFN and, with `norms=share`, the norms; `norms=keep` leaves each
layer its own. Biases go with their matrices; prefix keys and values stay.

Whole slots are tied, whatever expression they are, so this stacks on factors and shared heads. The layers of a group must
have modules of one size.
)";

}  // namespace

extern const Method seq_method;
const Method seq_method = {
    "seq",
    "baseline: consecutive layers share their weights",
    "Head-wise Shareable Attention for Large Language Models, appendix G.2, Tables 15 and 18; Lessons on "
    "Parameter Sharing across Layers in Transformers",
    kDocumentation + 1,
    {
        {"part", OptionSpec::Kind::number, "0.6", "latter part of the layers in which layers share", 0.0,
         1.0},
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

}  // namespace refold
