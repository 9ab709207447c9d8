// W_c for layers whose attention is shared or gone: UniAttn's linear compensation as a step of its own.
#include <nlohmann/json.hpp>

#include "compress/compensation/compensate.h"
#include "compress/method/method.h"
#include "compress/method/selection.h"

namespace refold::compensation_method {
namespace {

Model apply(const Model& model, Step& step) {
    const Options& options = step.options;
    const auto settings = compensation_settings(options, options.text("compensation"));
    const std::string& named = options.text("layers");
    const auto layers = named == "changed" ? layers_to_compensate(step.original, model)
                                           : parse_layers(named, model.topology.layers.size());
    nlohmann::json details = nlohmann::json::object();
    Model out = compensate(model, step, settings, layers, details);
    step.report.details = details.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
Compensates for attention that is taken from another layer (`uniattn`, `cla`) or left out (`llmdrop`, `drop`). In each such
layer, or in `layers`, a linear map W_c of the attention's normed input is added to the attention's output (equation 5). W_c
is solved in closed form, from the first layer to the last. With x the normed input in the present model, which has the W_c of
all layers below, and

    e = residual stream after the attention in the original  -  the same in this model without the layer's own W_c

W_c x should be e. So e contains the errors of the layers below.

**How** (`compensation`):
- `lsq`: W_c minimizes the sum over all tokens of |W_c x - e|^2 + ridge * m * |W_c|^2, where m is the mean of the diagonal of
  sum x x^T. Sums are in float64. `ridge=auto` takes for each layer the ridge that is best on the held-out part of the
  calibration text (every eighth sequence), and no W_c where none helps;
- `paper`: W_c = (pinv(X) E)^T (Theorem 3.1). The rows of X and E are positions, each the mean over sequences (appendix F);
  singular values above 1e-10, in float64. With `averages=1`, the paper's choice, all sequences are one mean: W_c is fitted
  to only as many rows as a sequence has tokens, and may make the model worse on other text. `averages=N` (Table 13: 1 to 16)
  takes the means of N parts of the text, N times as many rows;
- `zero`: W_c = 0, for training (in a product, the factor V is random).

**Where** (`place`, Table 12): `attention`: as above, the paper's best. `ffn`: from the same input to the FFN's output, with
the whole layer's difference as e. `before_o`: from the same input to the input of attn.o. `values`: from the layer's values
to the input of attn.o (only for layers that reuse probabilities). In the last two W_c minimizes |W_o W_c x - e|: it is
pinv(W_o) times the solution for `attention`. A norm after attn.o (Gemma 2 and 3) rules them out. `before_norm`, for models with
such a norm: from the normed input to the output of attn.o, before the norm, where e is the difference of that output alone:
what the authors' program does for Gemma 2. e then leaves out the errors of the layers below, and W_c cannot correct them.

**What it costs.** A full W_c has n_embd^2 numbers, most of what dropping Wq and Wk saves. `rank` stores it as a product U V of
2 rank n_embd numbers: the best product of that rank for the calibration text (reduced-rank regression), not the best
approximation of W_c. The report has both costs, and the mean of |e|^2 before and after: on the text that is solved with, and on
the held-out part, for a W_c that has not seen it. The stored W_c is solved with all of the text.

`layers=changed`: the layers without W_c whose attention is not what it is in the original. A layer that lost its attention
gets its norm back, which W_c reads. `lsq` and `paper` need calibration text (`--calib FILE --calib-tokens N`) with several
times as many tokens as the model is wide. Activations of one sequence, the residual streams and the weights of one superblock
are in memory. An interrupted run resumes after the layers that it had solved.
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

extern const Method method;
const Method method = {
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

}  // namespace refold::compensation_method
