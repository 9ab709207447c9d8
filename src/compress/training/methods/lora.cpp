// LoRA to be trained: "LoRA: Low-Rank Adaptation of Large Language Models" (Hu et al. 2022).
#include "compress/rewrite/lora.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "core/error.h"

namespace refold::lora_method {
namespace {

using nlohmann::json;

Model apply(const Model& model, Step& step) {
    const auto layers = parse_layers(step.options.text("layers"), model.topology.layers.size());
    const auto slots = parse_slots(step.options.text("slots"), *model.family);
    const auto ranks = lora_ranks(step.options);
    const auto seed = seed_of(step.options);
    Model out = model;
    size_t maps = 0;
    int64_t parameters = 0;
    for (const size_t p : layers) {
        for (const Slot slot : slots) {
            if (!model.topology.has(p, slot)) continue;
            const Expression& expression = model.topology.at(p, slot);
            if (std::holds_alternative<Plus>(expression))
                fail(ErrorCode::unsupported, "lora",
                     "layer {}: {} has a LoRA already, which 'train' can train as it is - leave it out with "
                     "'layers' or 'slots'",
                     p, slot_name(slot));
            const SlotShape shape = slot_shape(slot, model.config, p);
            const int64_t rank = std::min({ranks[lora_module(slot)], shape.in, shape.out});
            const DType type = computed_type(step.options.text("type"), model, tensors_of(expression));
            add_lora(out, p, slot, zero_lora(type, shape, rank, seed, p, slot));
            parameters += rank * (shape.in + shape.out);
            ++maps;
        }
    }
    if (maps == 0)
        fail(ErrorCode::usage, "lora", "layers {} have none of the slots '{}'", layers_text(layers),
             step.options.text("slots"));
    step.report.lines.push_back(
        fmt::format("{} maps of layers {} have a LoRA of {} parameters together, which changes nothing yet",
                    maps, layers_text(layers), parameters));
    step.report.details = json{{"maps", maps}, {"lora_parameters", parameters}}.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
Adds a LoRA, W x + B A x, to linear maps, whatever their weights are: stored, shared, looped or factors. B = 0 and A is
Gaussian (deviation 0.02, by `seed`), so the model computes what it did. A later step `train` with `train=lora` trains only A
and B. There is no factor alpha / r, neither here nor when the model runs.

Each layer gets its own LoRA, even where several layers have the same weights: so layers that share weights can differ again,
at a small cost. **Ranks**: `rank`, or `ranks` by module (q, kv, out, ffn), clipped to min(rows, columns) of the matrix.
`relax` adds LoRA that starts from what looping a block took away.

A map that already has a LoRA is an error: train that LoRA, or leave the map out.
)";

std::vector<OptionSpec> option_specs() {
    std::vector<OptionSpec> specs = lora_rank_options();
    specs.push_back(slots_option("all", "which maps get one: attn.q, ..., attn, ffn, all"));
    specs.push_back(layers_option());
    specs.push_back(seed_option("of the random numbers"));
    specs.push_back(type_option());
    return specs;
}

}  // namespace

extern const Method method;
const Method method = {
    "lora",
    "low-rank terms that change nothing until they are trained",
    "LoRA: Low-Rank Adaptation of Large Language Models, section 4.1",
    kDocumentation + 1,
    option_specs(),
    apply,
};

}  // namespace refold::lora_method
