// Recursive Transformers: one block of layers, run several times.
// "Relaxed Recursive Transformers: Effective Parameter Sharing with Layer-wise LoRA", section 2.2.
#include "compress/looping/conversion.h"
#include "compress/method/method.h"

namespace refold::recursive_method {

using namespace recursive;

namespace {

Model apply(const Model& model, Step& step) {
    const Settings settings = settings_of(step.options);
    if (settings.loops == 1) {
        step.report.lines.emplace_back("one loop: nothing is tied, the model is unchanged");
        return model;
    }
    Conversion conversion = convert(model, settings);
    report(conversion, settings, step.report);
    return std::move(conversion.tied);
}

constexpr const char* kDocumentation = R"(
L layers become B = `loops` loops through one block of K = L / B stored layers (section 2.2). Embeddings, final norm and head
are not part of the loop. Each layer of the forward pass keeps its own KV cache, window and rotation. Without training the
result is not a usable language model: the paper trains all of its models afterwards.

**Tying** (`tying`, Appendix D): layer i uses stored layer
- `cycle`: i mod K, the whole block in each loop (the paper's choice);
- `sequence`: floor(i / B), each layer B times in a row;
- `cycle_rev`: as cycle, with every second loop backwards.

**Initialization** (`init`, Figure 2): the stored layers hold
- `stepwise`: layers at even distances, the first and the last included: floor(k (L - 1) / (K - 1) + 1/2) for
  k = 0 .. K - 1. The paper's best for recursive models without relaxation;
- `average`: the mean of the layers that use the stored layer; best with relaxation (`relax`);
- `lower`: the first K layers;
- `fixed_start`: layers 0, B, 2 B, ...: at one distance from the first on, without the last. The paper's ablation of stepwise
  (Figure 11a, "Fixed-start"; stepwise is "Fixed-ends"), worse for Gemma;
- `random`: normal numbers of deviation 0.02 by `seed`, norms one, biases zero: the control. Embeddings and head stay; the paper's
  control has no pretrained weights at all: `random_init` after this step.

Copied layers keep their type and their bytes. Means are computed in float32 and stored as `type` says.

**Norms** (`norms`; biases are treated alike):
- `init`: tied, initialized like the weights: copied with the layer, or averaged;
- `average`: tied, the mean over the layers that use the stored layer (Appendix I, LN-avg);
- `choose`: tied, those of the copied layer; with init=average those of the first of the averaged layers (LN-choice);
- `zero`: tied, gains and biases of norms are zero in the checkpoint (LN-zero), which for Gemma is a gain of one. The paper's
  ablation, much worse for some architectures;
- `keep`: each layer has its own;
- `fold`: not in the paper. Gains of the norms before attention and FFN are first multiplied into Wq, Wk, Wv, gate and up
  (and a layer norm's bias into their biases), so that the norms become ones and lose nothing by being tied. The folded
  matrices are computed anew: those of a quantized model become 16 bits. Of other norms and biases each layer has its own.
  Not for layers whose norms come after the modules (BERT), nor where a map has no bias that could take the norm's.

**Stacking.** Weights that an earlier step shared or factored are written out first, so share heads, factor or prune after
this step. `refold export --to gguf` writes a Llama model tied by `cycle` as llama.cpp's `nanbeige`, which also runs the stored
block in loops.
)";

}  // namespace

extern const Method method;
const Method method = {
    "recursive",
    "loop one block of layers instead of storing all of them",
    "Relaxed Recursive Transformers: Effective Parameter Sharing with Layer-wise LoRA, section 2.2",
    kDocumentation + 1,
    option_specs("stepwise"),
    apply,
};

}  // namespace refold::recursive_method
