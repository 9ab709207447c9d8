// LLM-Pruner: "LLM-Pruner: On the Structural Pruning of Large Language Models" (Ma, Fang, Wang 2023).
#include <algorithm>
#include <cmath>
#include <optional>

#include "calibrate/calibration_device.h"
#include "compress/method/lazy.h"
#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "compress/method/work.h"
#include "compress/pruning/prune.h"
#include "compress/rewrite/units.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "engine/torch/plugin.h"
#include "train/importance.h"

namespace refold::llm_pruner_method {
namespace {

using Floats = std::vector<float>;

bool sums_columns(Slot slot) { return properties(slot).units == UnitAxis::columns; }

// The stored tensors that heads or channels belong to, and whether these are columns of the tensor.
std::map<std::string, bool> tensors_to_weigh(const Model& model, const Options& options) {
    const std::string& what = options.text("what");
    std::vector<Slot> slots;
    if (what != "ffn") slots = kQkvo;
    if (what != "heads") {
        const auto ffn = parse_slots("ffn", *model.family);
        slots.insert(slots.end(), ffn.begin(), ffn.end());
    }
    std::map<std::string, bool> out;
    for (const size_t p : parse_layers(options.text("layers"), model.topology.layers.size())) {
        for (const Slot slot : slots) {
            if (!model.topology.has(p, slot)) continue;
            for (const auto& name : tensors_of(model.topology.at(p, slot))) out[name] = sums_columns(slot);
        }
    }
    return out;
}

Taylor taylor_of(const std::string& text) {
    if (text == "vector") return Taylor::vector;
    if (text == "element1") return Taylor::element1;
    return text == "element2" ? Taylor::element2 : Taylor::mix;
}

constexpr Computation kImportance{"llm_pruner", 1};

Importance computed_importance(const Model& model, const Step& step) {
    const auto& fit = step.calibration->fit;
    const auto count = std::min(static_cast<size_t>(step.options.integer("sequences")), fit.size());
    const Taylor taylor = taylor_of(step.options.text("taylor"));
    const bool by_sequence = taylor == Taylor::element2 || taylor == Taylor::mix;
    std::optional<Progress> progress;
    const auto report = [&](int64_t, int64_t total) {
        if (!progress)
            progress.emplace("gradients", static_cast<uint64_t>(total),
                             by_sequence ? "sequences" : "tensors");
        progress->advance(1);
    };
    ImportanceRequest request{.model = model,
                              .sequences = std::span(fit).first(count),
                              .taylor = taylor,
                              .tensors = tensors_to_weigh(model, step.options),
                              .threads = step.threads,
                              .device = gradient_device(step.options.text("device")),
                              .report = report,
                              .stop = [] { return interrupted(); }};
    Importance out = taylor_importance(request);
    if (progress) progress->finish();
    return out;
}

Importance importance_of(const Model& model, const Step& step) {
    const auto stored = step.work->results({kImportance, {{"step", step.identity}}}, {}, [&] {
        Arrays arrays;
        for (auto& [name, values] : computed_importance(model, step))
            arrays[name] = {{static_cast<int64_t>(values.size())}, values};
        return arrays;
    });
    Importance out;
    for (const auto& [name, tensor] : stored) out[name] = lazy::floats(tensor, nullptr);
    return out;
}

// Importance of each row (or column) of a layer's slot.
Floats of_slot(const Model& model, const Importance& importance, size_t layer, Slot slot) {
    const Expression& expression = model.topology.at(layer, slot);
    if (const auto* dense = std::get_if<Dense>(&expression)) return importance.at(dense->tensor);
    Floats out;
    const int64_t width = model.config.head_dim;
    for (const HeadRun& run : std::get<Heads>(expression).runs) {
        const auto first = importance.at(run.tensor).begin() + run.first * width;
        out.insert(out.end(), first, first + run.count * width);
    }
    return out;
}

double reduced(const std::vector<double>& members, const std::string& rule) {
    if (rule == "first") return members.front();
    if (rule == "max") return *std::max_element(members.begin(), members.end());
    double out = rule == "prod" ? 1 : 0;
    for (const double x : members) out = rule == "prod" ? out * x : out + x;
    return out;
}

// Importance of each unit: channel by channel reduced over the matrices of the structure, then summed over
// the unit's channels (those of its key head, or the one of an FFN). Query heads of a group are added up
// channel by channel.
std::vector<double> weighed(const Model& model, const Importance& importance, size_t layer,
                            const std::vector<Slot>& slots, const std::string& rule) {
    const bool heads = slots == kQkvo;
    const auto units =
        static_cast<size_t>(heads ? model.config.n_head_kv_of(layer) : model.config.n_ff_of(layer));
    const size_t channels = heads ? static_cast<size_t>(model.config.head_dim) : 1;
    std::vector<std::vector<double>> members(units * channels);  // by channel, then by slot
    for (const Slot slot : slots) {
        if (!model.topology.has(layer, slot)) continue;
        const Floats values = of_slot(model, importance, layer, slot);
        const size_t of_unit = values.size() / units;
        for (auto& member : members) member.push_back(0);
        for (size_t i = 0; i < values.size(); ++i)
            members[i / of_unit * channels + i % channels].back() += static_cast<double>(values[i]);
    }
    std::vector<double> out(units);
    for (size_t i = 0; i < members.size(); ++i) out[i / channels] += reduced(members[i], rule);
    return out;
}

Model apply(const Model& model, Step& step) {
    if (!model.config.causal)
        fail(ErrorCode::unsupported, "llm_pruner", "the loss is that of a decoder, '{}' is an encoder",
             model.config.family);
    if (step.dry_run()) return prune(model, step, "llm_pruner", nullptr);
    torch_plugin::find(kImportanceSymbol);  // fails before any work where the library is missing
    const Importance importance = importance_of(model, step);
    return prune(model, step, "llm_pruner",
                 [&](const Model& at, size_t layer, const std::vector<Slot>& slots) {
                     return weighed(at, importance, layer, slots, step.options.text("reduction"));
                 });
}

constexpr const char* kDocumentation = R"(
Structures that depend on each other are left out together, the least important first: a KV group (a key and a value head
with their query heads and columns of Wo; without grouped-query attention, a head) and a channel of an FFN (a row of gate and
up with a column of down). Importance estimates how much the loss on a calibration text would change without the structure,
to first or second order (equations 3 to 5), from gradients of the whole model on `sequences` sequences.

**Taylor** (`taylor`), with the weights w of a row (of Wo and down: a column), g = dL/dw, and h the mean over sequences of the
squared gradients: `vector` |sum of w g|; `element1` sum of |w g| (most of the paper's tables, and the default); `element2`
sum of |w h w|; `mix` sum of |w g - w h w / 2|.

**Reduction** (`reduction`) over the matrices of a structure (q, k, v, o; gate, up, down), channel by channel; the channels of
a head are then added up. `first` is q and gate. With fewer key heads the authors' program adds up query heads across groups;
here the query heads of a group are added up.

**Which.** `rank=layer` (the default, as theirs): `ratio` of each layer in `layers`. `global`: `ratio` of the structures of
all layers, taken from `layers`. `even`: as many as with `global`, the same number of each layer of `layers`, and one more of
those where it matters least: the size of head sharing at this ratio, which `layer` misses where `ratio` of a layer's heads is
no whole number (28.1 % for 30 % of 32 heads). The paper leaves the first four and the last two layers of LLaMA-7B alone and prunes 25 % of
the others for 20 % of the model: `ratio=0.25 layers=4-29`. Each layer keeps a multiple of `multiple` FFN channels.

Recovery is a separate step: `lora`, then `train` with `train=lora` (recipes/llm_pruner.yaml).

Needs libtorch and calibration text (`--calib`). The paper's 10 sequences have 64 tokens; here they are as long as those of
the calibration. Memory: the model in float32; for `vector` and `element1` also the residual stream of all sequences and the
gradients of one layer at a time, for `element2` and `mix` three times the model's gradients. Weights that layers share get
the gradient of all their uses. For shared, quantized and factored weights see `prune_magnitude`.
)";

std::vector<OptionSpec> option_specs() {
    using Kind = OptionSpec::Kind;
    auto specs = pruning_options("0.25", "both", "layer");
    const std::vector<OptionSpec> own = {
        {.name = "taylor",
         .kind = Kind::choice,
         .fallback = "element1",
         .help = "importance of a row or column",
         .choices = {"vector", "element1", "element2", "mix"}},
        {.name = "reduction",
         .kind = Kind::choice,
         .fallback = "sum",
         .help = "over the matrices of a structure",
         .choices = {"sum", "max", "prod", "first"}},
        {"sequences", Kind::integer, "10", "of the calibration text, for gradients", 1},
        {.name = "device",
         .kind = Kind::choice,
         .fallback = "auto",
         .help = "where gradients are computed; auto: a CUDA device where libtorch finds one",
         .choices = {"auto", "cpu", "cuda"}},
    };
    specs.insert(specs.begin() + 2, own.begin(), own.end());
    return specs;
}

}  // namespace

extern const Method method;
const Method method = {
    "llm_pruner",
    "baseline: leave out the heads and FFN channels that the loss needs least",
    "LLM-Pruner: On the Structural Pruning of Large Language Models, section 3",
    kDocumentation + 1,
    option_specs(),
    apply,
    [](const Options&) { return true; },
};

}  // namespace refold::llm_pruner_method
