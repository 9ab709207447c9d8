#include "compress/methods/seq.h"

#include <nlohmann/json.hpp>

#include "compress/matching.h"
#include "compress/selection.h"
#include "core/error.h"

namespace refold {
namespace {

using Group = std::vector<size_t>;

// Consecutive layers that share: those named, or whole groups of the latter part.
std::vector<Group> groups_of(const Options& options, size_t positions) {
    const auto size = static_cast<size_t>(options.integer("group"));
    std::vector<size_t> layers;
    if (options.text("layers") == "latter") {
        const size_t count = part_of(options.number("part"), positions) / size * size;
        for (size_t p = positions - count; p < positions; ++p) layers.push_back(p);
    } else {
        layers = parse_layers(options.text("layers"), positions);
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

// What the slots of a layer mean to `share`.
bool is_shared(Slot slot, const std::string& share, bool norms) {
    if (is_prefix(slot)) return false;
    if (share == "layer") {
        for (const Slot matrix : {Slot::attn_q, Slot::attn_k, Slot::attn_v, Slot::attn_o, Slot::ffn_gate,
                                  Slot::ffn_up, Slot::ffn_down}) {
            if (slot == matrix || slot == bias_of(matrix)) return true;
        }
        return norms;
    }
    for (const Slot matrix : {Slot::attn_q, Slot::attn_k, Slot::attn_v})
        if (slot == matrix || slot == bias_of(matrix)) return true;
    return share == "qkvo" && (slot == Slot::attn_o || slot == Slot::attn_o_bias);
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
    for (const Group& group : groups_of(options, model.topology.positions.size())) {
        const Slots source = shared_slots(model.topology.positions[group.front()], share, norms);
        for (size_t i = 1; i < group.size(); ++i) {
            need_equal_sizes(model, group.front(), group[i], share);
            for (const auto& [slot, expression] : source) out.topology.positions[group[i]][slot] = expression;
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
Consecutive layers share weights in groups: the later ones take those of the first. This is layer-wise sharing
(SEQUENCE of Takase and Kiyono) as the paper of head sharing modifies it for large models: only in the latter 60 % of the
layers (`part`), to compare at equal size (Tables 15 and 18).

**Which layers.** The last floor(`part` x layers) layers, less those that do not fill a group, in groups of `group`. In
pairs, 0.6 makes as many attention modules go as `direct_share` at 30 % of the heads. How the paper gets 10 % is not said;
0.2 gives it. `layers` names them instead.

**What is shared** (`share`). The paper does not say; a comparison at equal ratio suggests the attention modules: `qkvo`
(as `direct_share`) or `qkv`. `layer` shares the FFN too and, with `norms=share`, the layer's norms; `norms=keep` leaves
them to each position. Biases go with their matrices, prefix keys and values stay.

Whole slots are tied, whatever they are made of, so this stacks on factors and shared heads; the layers of a group must
have modules of one size.
)";

}  // namespace

const Method kSeq = {
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
