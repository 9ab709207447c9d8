// KV groups or FFN channels with the smallest weights are left out: the pruning baseline of head sharing.
// "Head-wise Shareable Attention for Large Language Models", section 5.1 and appendix C.1.
#include <cmath>

#include "compress/pruning/prune.h"
#include "compress/rewrite/units.h"
#include "model/materialize.h"

namespace refold::prune_magnitude_method {
namespace {

// Sums of |w|^p by row or column of a matrix [rows][columns].
std::vector<double> sums(const std::vector<float>& weights, size_t columns, bool by_column, int64_t power) {
    std::vector<double> out(by_column ? columns : weights.size() / columns);
    for (size_t i = 0; i < weights.size(); ++i) {
        const double w = weights[i];
        out[by_column ? i % columns : i / columns] += power == 1 ? std::abs(w) : w * w;
    }
    return out;
}

// Adds a slot's weights to the scores of its layer. Each index has the same number of rows (or columns).
void add_slot(const Model& model, size_t layer, Slot slot, int64_t power, std::vector<double>& scores) {
    const SlotShape shape = slot_shape(slot, model.config, layer);
    const bool columns = properties(slot).units == UnitAxis::columns;
    const auto weights = materialize(model, model.topology.at(layer, slot), slot, layer);
    const auto added = sums(weights, static_cast<size_t>(shape.in), columns, power);
    const size_t width = added.size() / scores.size();
    for (size_t i = 0; i < added.size(); ++i) scores[i / width] += added[i];
}

Model apply(const Model& model, Step& step) {
    ImportanceOf importance;
    if (!model.shapes_only) {
        importance = [power = step.options.integer("p")](const Model& at, size_t p,
                                                         const std::vector<Slot>& slots) {
            const bool heads = slots == kQkvo;
            std::vector<double> scores(
                static_cast<size_t>(heads ? at.config.n_head_kv_of(p) : at.config.n_ff_of(p)));
            for (const Slot slot : slots) {
                if (at.topology.has(p, slot)) add_slot(at, p, slot, power, scores);
            }
            return scores;
        };
    }
    return prune(model, step, "prune_magnitude", importance);
}

constexpr const char* kDocumentation = R"(
The attention heads, or FFN channels, with the smallest weights are left out: matrices, biases and the KV cache become
smaller. This is structured magnitude pruning, the baseline that the paper of head sharing compares itself with at the same
number of parameters ("only prune the multi-head attention module").

**What.** `heads` (default): whole KV groups, that is a key/value head with its query heads and their columns of Wo (without
grouped-query attention, heads). `ffn`: channels, that is a row of gate and up with a column of down. `both`.

**Importance** is the sum of |w|^`p` over all weights of the group or channel, in float64. The paper names no rule (it cites
unstructured pruning but excludes it); this is our reading.

**Rank.** `global`: the floor(`ratio` x all groups of all layers) smallest of the model. A layer that loses all its heads has
no attention and no KV cache. `layer`: the floor(`ratio` x its groups) smallest of each layer. `even`: as many as with `global`,
the same number of each layer, and one more of the layers where it matters least. Only `layers` are pruned; with `global` and
`even`, `ratio` counts the others as well. With `heads` the report names the difference to the size of the model that has
`ratio` of its heads shared.

**FFN channels**: each layer keeps a multiple of `multiple`, so that products stay fast and quantization blocks whole. For
that, the most important of the channels to be pruned are kept.

**Quantized models.** Rows are copied as they are. Columns (of Wo and down) can be cut only between quantization blocks;
otherwise the tensor is requantized (Q8_0, or F16), and the report names it. Single channels never are whole blocks, so
pruning FFNs of a 4-bit model can make its down projection larger: prune the unquantized model and quantize at the end.

**Stacking.** Heads or FFNs that several layers have in common, in a loop for instance, are left out in all of them or not at
all. Layers made of factors have no heads or channels: leave them out with `layers`. With ALiBi the heads that stay keep their
slopes. For a bare config.json only sizes are known, and the choice is a placeholder.
)";

std::vector<OptionSpec> option_specs() {
    auto specs = pruning_options("0.3", "heads", "global");
    specs.insert(specs.begin() + 2,
                 {"p", OptionSpec::Kind::integer, "2", "power of |w| in the importance", 1, 2});
    return specs;
}

}  // namespace

extern const Method method;
const Method method = {
    "prune_magnitude",
    "baseline: leave out the heads or FFN channels with the smallest weights",
    "Head-wise Shareable Attention for Large Language Models, section 5.1 and appendix C.1 (Magnitude "
    "Pruning)",
    kDocumentation + 1,
    option_specs(),
    apply,
};

}  // namespace refold::prune_magnitude_method
