// Cross-layer attention: keys and values of a superblock's first layer serve all.
#include <nlohmann/json.hpp>

#include "compress/attention_sharing/superblocks.h"
#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "core/error.h"

namespace refold::cla_method {
namespace {

// The upper half of the superblocks, rounded up (UniAttn, Table 7).
Superblocks upper_half(const Superblocks& blocks) {
    return {blocks.begin() + static_cast<ptrdiff_t>(blocks.size() / 2), blocks.end()};
}

Model apply(const Model& model, Step& step) {
    Superblocks blocks = superblocks_of(step.options, model.topology.layers.size());
    if (step.options.text("variant") == "half") blocks = upper_half(blocks);
    Model out = share_attention(model, blocks, SharedAttention::kv, "cla");
    step.report.lines.push_back(fmt::format("keys and values of layers {} serve {}", superblocks_text(blocks),
                                            layers_text(reusing_layers(blocks))));
    step.report.lines.push_back("saves " + saving_text(model, out));
    step.report.details =
        nlohmann::json{{"superblocks", superblocks_list(blocks)}, {"reusing", reusing_layers(blocks)}}.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
Consecutive layers form superblocks. The queries of all layers of a superblock attend to the keys and values of its first
layer; the others have no Wk and Wv and cache nothing. This is the comparison method of UniAttn (section 4.1), with the same
superblocks.

**Which layers.** `superblocks` names them (18-21,22-25: first and last layer, from 0). Otherwise there are `count`
superblocks of `size` layers, the last one ending with the last layer; by default as many as fit into the top half. `size=2`
shares in pairs. `variant=half` takes only the upper half of the superblocks, rounded up as the paper does for Gemma 2
(CLA-Half: as much KV cache as `uniattn` on all of them).

Keys are reused after norm and rotation; a layer that reuses them rotates its queries as that layer does. Scores and softmax
are still computed in each layer, so little time is saved.

Nothing is trained. `compensation` after this step solves W_c for the layers that reuse, `refit` the output projections of all
layers. Only for decoders without prefix keys; the layers of a superblock must have the same number of key/value heads.
)";

std::vector<OptionSpec> options() {
    auto specs = superblock_options();
    specs.push_back({.name = "variant",
                     .kind = OptionSpec::Kind::choice,
                     .fallback = "full",
                     .help = "all superblocks, or the upper half of them",
                     .choices = {"full", "half"}});
    return specs;
}

}  // namespace

extern const Method method;
const Method method = {
    "cla",
    "consecutive layers reuse keys and values of the first one",
    "Reducing Transformer Key-Value Cache Size with Cross-Layer Attention; UniAttn, section 4.1, Table 7",
    kDocumentation + 1,
    options(),
    apply,
};

}  // namespace refold::cla_method
