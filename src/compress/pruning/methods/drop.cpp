// Attention modules, FFNs or whole layers are left out: the baseline of equal stored size.
// He et al., "What Matters in Transformers? Not All Attention is Needed".
#include <nlohmann/json.hpp>

#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "compress/rewrite/modules.h"
#include "core/error.h"

namespace refold::drop_method {
namespace {

void need(bool there, size_t layer, const char* module) {
    if (!there)
        fail(ErrorCode::unsupported, "drop", "layer {} has no {} (an earlier step left it out)", layer,
             module);
}

Model apply(const Model& model, Step& step) {
    const Options& options = step.options;
    const std::string& modules = options.text("modules");
    if (options.text("layers").empty())
        fail(ErrorCode::usage, "drop", "layers is needed: which ones, from 0, such as layers=25,26,28");
    const auto layers = parse_layers(options.text("layers"), model.topology.layers.size());
    Model out = model;
    for (const size_t p : layers) {
        if (modules != "ffn") {
            need(model.topology.has(p, Slot::attn_o), p, "attention");
            remove_attention(out, p);
        }
        if (modules != "attention") {
            need(has_ffn(model.topology, p), p, "FFN");
            remove_ffn(out, p);
        }
    }
    out.drop_unreferenced();
    const char* what = modules == "attention" ? "attention" : modules == "ffn" ? "FFN" : "attention and FFN";
    step.report.lines.push_back(fmt::format("left out: {} of layers {}", what, layers_text(layers)));
    step.report.details = nlohmann::json{{"layers", layers}, {"modules", modules}}.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
The attention, the FFN or both are left out of the named layers, with their norms and biases; the residual stream bypasses
them. `layers` is required: nothing is chosen here.

This is the bar for all methods that share or factorize: one that loses more than leaving out modules of the same stored size
is not worth using. A layer without attention has no KV cache.

Norms of the residual stream itself (post-norm layers, BERT) stay, and so does a norm that the other module also reads
(GPT-J). Stock llama.cpp has no layers without a module: `refold export` writes such modules as zeros.
)";

}  // namespace

extern const Method method;
const Method method = {
    "drop",
    "baseline: leave out attention modules, FFNs or whole layers",
    "What Matters in Transformers? Not All Attention is Needed, section 3",
    kDocumentation + 1,
    {
        {.name = "layers",
         .fallback = "",
         .help = "layers whose modules are left out, from 0: 25,26,28; required"},
        {.name = "modules",
         .kind = OptionSpec::Kind::choice,
         .fallback = "attention",
         .help = "what is left out; block: attention and FFN",
         .choices = {"attention", "ffn", "block"}},
    },
    apply,
};

}  // namespace refold::drop_method
