#include "compress/methods/prune_magnitude.h"

#include <cmath>

#include "compress/prune.h"
#include "compress/units.h"

namespace refold {
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

// Adds a slot's weights to the scores of its position: as many rows or columns belong to every index.
void add_slot(const Model& model, size_t position, Slot slot, int64_t power, std::vector<double>& scores) {
    const SlotShape shape = slot_shape(slot, model.config, position);
    const bool columns = slot == Slot::attn_o || slot == Slot::ffn_down;
    const auto weights = materialise(model, model.topology.at(position, slot), slot, position);
    const auto added = sums(weights, static_cast<size_t>(shape.in), columns, power);
    const size_t width = added.size() / scores.size();
    for (size_t i = 0; i < added.size(); ++i) scores[i / width] += added[i];
}

Model apply(const Model& model, Step& step) {
    Weigh weigh;
    if (!model.shapes_only) {
        weigh = [power = step.options.integer("p")](const Model& at, size_t p,
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
    return prune(model, step, "prune_magnitude", weigh);
}

constexpr const char* kDocumentation = R"(
The attention heads, or FFN channels, with the smallest weights are left out: matrices, biases and the KV cache become
smaller. This is structured magnitude pruning, the baseline to which the paper of head sharing compares itself at the
same number of parameters ("only prune the multi-head attention module").

**What.** `heads` (default): whole KV groups - a key/value head with its query heads and their columns of Wo; without
grouped-query attention, heads. `ffn`: channels, a row of gate and up with a column of down. `both`.

**Importance** is the sum of |w|^`p` over all weights of the group or channel, in float64. The paper cites unstructured
pruning but excludes it, and names no rule; this is the reading taken.

**Rank.** `global`: the `ratio` x (all groups of all layers) smallest of the model, rounded down; a layer may lose all
its heads and has no attention then, and no KV cache. `layer`: floor(`ratio` x its groups) of every layer. Only
`layers` are pruned; with `global`, `ratio` counts the others as well.

**FFN channels** are kept in whole `multiple`s per layer, by keeping the most important of those that were to go, so
that products stay fast and blocks whole.

**Quantised models.** Rows are copied as they are. Columns (of Wo and down) can be cut only between blocks; where that is
impossible the tensor is requantised (Q8_0, or F16), and the report names it. Single channels never fit blocks, so
pruning FFNs of a 4-bit model can make its down projection larger: prune the unquantised model, quantise at the end.

**Stacking.** Heads or FFNs that several layers have in common, in a loop for one, go in all of them or not at all.
Layers made of factors have no heads or channels to weigh: leave them out with `layers`. ALiBi models cannot lose single
heads, because slopes belong to the heads' numbers. Of a bare config.json only sizes can be told, the choice is a
placeholder.
)";

std::vector<OptionSpec> option_specs() {
    auto specs = pruning_options("0.3", "heads", "global");
    specs.insert(specs.begin() + 2,
                 {"p", OptionSpec::Kind::integer, "2", "power of |w| in the importance", 1, 2});
    return specs;
}

}  // namespace

const Method kPruneMagnitude = {
    "prune_magnitude",
    "baseline: leave out the heads or FFN channels with the smallest weights",
    "Head-wise Shareable Attention for Large Language Models, section 5.1 and appendix C.1 (Magnitude "
    "Pruning)",
    kDocumentation + 1,
    option_specs(),
    apply,
};

}  // namespace refold
