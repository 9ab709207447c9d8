#include "compress/methods/drop.h"

#include <nlohmann/json.hpp>

#include "compress/modules.h"
#include "compress/selection.h"
#include "core/error.h"

namespace refold {
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
    const auto layers = parse_layers(options.text("layers"), model.topology.positions.size());
    Model out = model;
    for (const size_t p : layers) {
        if (modules != "ffn") {
            need(model.topology.has(p, Slot::attn_o), p, "attention");
            remove_attention(out, p);
        }
        if (modules != "attention") {
            need(model.topology.has(p, Slot::ffn_down), p, "FFN");
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
The attention, the FFN or both of the named layers are left out, with the module's norms and biases; the residual stream
passes by. Nothing is chosen here: `layers` is required.

This is the bar for every method that shares or factorises: whatever costs more than leaving out modules of the same
stored size is not worth its while. An attention module that is left out takes its part of the KV cache with it.

Norms of the residual stream itself (post-norm layers, BERT) stay, and so does a norm that the other module reads as
well (GPT-J). Stock llama.cpp has no such layers: on export they come back as zeros.
)";

}  // namespace

const Method kDrop = {
    "drop",
    "baseline: leave out attention modules, FFNs or whole layers",
    "What Matters in Transformers? Not All Attention is Needed, section 3",
    kDocumentation + 1,
    {
        {.name = "layers", .fallback = "", .help = "layers whose modules go, from 0: 25,26,28; required"},
        {.name = "modules",
         .kind = OptionSpec::Kind::choice,
         .fallback = "attention",
         .help = "what goes; block: attention and FFN",
         .choices = {"attention", "ffn", "block"}},
    },
    apply,
};

}  // namespace refold
