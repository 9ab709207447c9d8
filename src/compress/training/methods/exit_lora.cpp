// A LoRA of the output layer for tokens that exit early, to be trained.
// "Relaxed Recursive Transformers: Effective Parameter Sharing with Layer-wise LoRA", Appendix M and
// Table 11.
#include <nlohmann/json.hpp>

#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "compress/rewrite/lora.h"
#include "core/error.h"

namespace refold::exit_lora_method {
namespace {

Model apply(const Model& model, Step& step) {
    const size_t layers = model.topology.layers.size();
    const size_t length = layers / static_cast<size_t>(model.topology.loops);
    const auto seed = seed_of(step.options);
    if (length == layers)
        fail(ErrorCode::unsupported, "exit_lora", "{}: the model has no loops to exit between", model.label);
    if (!model.config.causal || model.config.n_prefix > 0)
        fail(ErrorCode::unsupported, "exit_lora", "exits are for decoders without prefix keys");
    if (model.config.norm_head)
        fail(ErrorCode::unsupported, "exit_lora",
             "the output layer's rows are normalized, so that a sum with a LoRA would be another one");
    const SlotShape shape = slot_shape(Slot::exit_output, model.config, 0);
    const int64_t rank = step.options.integer("rank");
    if (rank > shape.in)
        fail(ErrorCode::usage, "exit_lora", "rank={}: a map of {} features has at most as many", rank,
             shape.in);
    const DType type =
        computed_type(step.options.text("type"), model, tensors_of(model.topology.globals.at(Slot::output)));
    Model out = model;
    int64_t parameters = 0;
    for (size_t end = length - 1; end + 1 < layers; end += length) {
        Slots& slots = out.topology.layers[end];
        if (slots.contains(Slot::exit_output))
            fail(ErrorCode::unsupported, "exit_lora",
                 "layer {}: exits have a LoRA already, which 'train' can train as it is", end);
        const Lora lora = zero_lora(type, shape, rank, seed, end, Slot::exit_output);
        const std::string stem = fmt::format("blk.{}.exit_output", end);
        out.tensors[stem + ".lora_b"] = lora.b;
        out.tensors[stem + ".lora_a"] = lora.a;
        slots[Slot::exit_output] = LowRank{stem + ".lora_b", stem + ".lora_a"};
        parameters += rank * (shape.in + shape.out);
    }
    step.report.lines.push_back(fmt::format(
        "the output layer has a LoRA of rank {} for each of {} exits, {} parameters together, which "
        "changes nothing yet",
        rank, model.topology.loops - 1, parameters));
    step.report.details = nlohmann::json{{"rank", rank}, {"parameters", parameters}}.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
Tokens that exit at the end of a loop before the last get logits (W + B A) h in place of W h, where W is the output layer, h the
final hidden state and B A a LoRA of the exit's own: the variant of early exits that leaves the uptrained model as it is
(Appendix M, Table 11, "Freeze", rank 128). Tokens that run all loops do not meet it, so their results stay the same. The paper
found it ineffective: a perplexity of 43 instead of 14 for the exit.

B = 0 and A is Gaussian (deviation 0.02, by `seed`), so nothing changes before training. `train` with `objective=early_exit` and
`train=exit` trains B and A alone. A map of the residual stream in closed form, `exit_map`, is ours and does better.

`refold export` to other formats leaves it out.
)";

}  // namespace

extern const Method method;
const Method method = {
    "exit_lora",
    "a LoRA of the output layer for tokens that exit early, to be trained",
    "Relaxed Recursive Transformers: Effective Parameter Sharing with Layer-wise LoRA, Appendix M",
    kDocumentation + 1,
    {
        {"rank", OptionSpec::Kind::integer, "128", "of each exit's LoRA", 1, 1 << 16},
        seed_option("of the initial values"),
        type_option(),
    },
    apply,
};

}  // namespace refold::exit_lora_method
