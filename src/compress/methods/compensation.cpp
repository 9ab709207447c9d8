#include "compress/methods/compensation.h"

#include <nlohmann/json.hpp>

#include "compress/compensate.h"
#include "compress/selection.h"

namespace refold {
namespace {

Model apply(const Model& model, Step& step) {
    const Options& options = step.options;
    const auto settings = compensation_settings(options, options.text("compensation"));
    const std::string& named = options.text("layers");
    const auto layers = named == "changed" ? layers_to_compensate(step.original, model)
                                           : parse_layers(named, model.topology.positions.size());
    nlohmann::json details = nlohmann::json::object();
    Model out = compensate(model, step, settings, layers, details);
    step.report.details = details.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
Makes up for attention that is another layer's (`uniattn`, `cla`) or gone (`llmdrop`, `drop`): in each such layer, or in
`layers`, a linear map W_c of the normed input of the attention is added to the attention's output (equation 5). It is solved
in closed form from the bottom up. With x the normed input in the model as it has become so far, W_c below included, and

    e = residual stream behind the attention, original model  -  the same in this model without the layer's own W_c

W_c x is to be e; e holds the errors of the layers below too.

**How** (`compensation`):
- `lsq`: W_c minimises the sum over all tokens of |W_c x - e|^2 + ridge * m * |W_c|^2, m being the mean of the diagonal of
  sum x x^T. Sums in float64. `ridge=auto` takes for each layer the one that is best on the part of the calibration text that
  is not solved with (every eighth sequence), and no W_c at all where none helps;
- `paper`: W_c = (pinv(X) E)^T (Theorem 3.1) where rows of X and E are the places in the sequence, each the mean over all
  sequences (appendix F, N = 1), with singular values above 1e-10, in float64. It is fitted to as many rows as a sequence has
  tokens, and may make things worse on other text;
- `zero`: W_c = 0, for training (of a product, the factor V is random).

**Where** (`place`, Table 12): `attention` as above, the paper's best; `ffn`: from the same input to the FFN's output, e being
the whole layer's difference; `before_o`: from the same input to the input of attn.o; `values`: from the layer's values to the
input of attn.o (only for layers that reuse probabilities). In the last two, W_c is the least-squares solution for
|W_o W_c x - e|, pinv(W_o) times that for `attention`; a norm behind attn.o (Gemma 2 and 3) rules them out.

**What it costs.** A full W_c has n_embd^2 numbers, most of what dropping Wq and Wk saves. `rank` stores it as a product U V of
2 rank n_embd numbers: the best one of that rank for the calibration text (reduced-rank regression), not for W_c's own
entries. The report has both costs, and the mean of |e|^2 before and after: on the text that is solved with, and on the
held-out part with a W_c that has not seen it. The stored one is solved with all of the text.

`layers=changed`: the layers whose attention is not what it is in the original and that have no W_c yet. A layer that lost its
attention gets its norm back, which W_c reads. `lsq` and `paper` need calibration text (`--calib FILE --calib-tokens N`),
several times as many tokens as the model is wide; activations of one sequence, the residual streams and one superblock of
weights are in memory. An interrupted run finds its solved layers again.
)";

std::vector<OptionSpec> options() {
    std::vector<OptionSpec> specs = {
        {.name = "compensation",
         .kind = OptionSpec::Kind::choice,
         .fallback = "lsq",
         .help = "how W_c is solved",
         .choices = {"lsq", "paper", "zero"}},
        {.name = "layers",
         .fallback = "changed",
         .help = "layers that get W_c, from 0: 19-21,23; changed: those whose attention is not their own"},
    };
    const auto more = compensation_options();
    specs.insert(specs.end(), more.begin(), more.end());
    return specs;
}

}  // namespace

const Method kCompensation = {
    "compensation",
    "repair: a linear map beside attention that is shared or gone",
    "UniAttn: Reducing Inference Costs via Softmax Unification for Post-Training LLMs, section 3.2, Table "
    "12, "
    "appendix F",
    kDocumentation + 1,
    options(),
    apply,
    [](const Options& options) { return is_solved(options.text("compensation")); },
};

}  // namespace refold
