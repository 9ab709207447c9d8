// Prefix tuning: trained keys and values before the sequence, of every layer's own.
// "Relaxed Recursive Transformers: Effective Parameter Sharing with Layer-wise LoRA", Appendix K.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "compress/method/lazy.h"
#include "compress/method/method.h"
#include "core/error.h"

namespace refold {
namespace {

void check(const Model& model) {
    const ModelConfig& c = model.config;
    const auto refuse = [](const char* why) {
        fail(ErrorCode::unsupported, "prefix", "prefix keys and values are not for {}", why);
    };
    if (!c.causal) refuse("encoders");
    if (c.max_alibi_bias > 0) refuse("models with ALiBi: a prefix has no position");
    if (std::any_of(c.windows.begin(), c.windows.end(), [](int64_t w) { return w > 0; }))
        refuse("models with sliding windows, which would lose sight of them");
    if (c.n_prefix > 0)
        fail(ErrorCode::unsupported, "prefix", "the model has a prefix of {} already", c.n_prefix);
}

Model apply(const Model& model, Step& step) {
    check(model);
    Model out = model;
    out.config.n_prefix = step.options.integer("length");
    const lazy::Gaussian gaussian{static_cast<float>(step.options.number("std")),
                                  static_cast<uint64_t>(step.options.integer("seed"))};
    int64_t parameters = 0;
    for (size_t p = 0; p < out.topology.layers.size(); ++p) {
        if (out.config.n_head_kv_of(p) == 0) continue;
        for (const auto& [slot, part] : {std::pair{Slot::attn_prefix_k, "k"}, {Slot::attn_prefix_v, "v"}}) {
            const SlotShape shape = slot_shape(slot, out.config, p);
            const std::string name = fmt::format("blk.{}.attn_prefix_{}", p, part);
            out.tensors[name] = lazy::random(DType::F32, {shape.in, shape.out}, gaussian, name);
            out.topology.layers[p][slot] = Dense{name};
            parameters += shape.in * shape.out;
        }
    }
    step.report.lines.push_back(
        fmt::format("{} keys and values before every sequence, {} parameters; random until they are trained",
                    out.config.n_prefix, parameters));
    step.report.details = nlohmann::json{{"parameters", parameters}}.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
Each layer gets its own `length` keys and values, which all tokens see before the sequence: the paper's second way to relax a
recursive model (Appendix K), for any decoder. They have no position: keys are used without rotation. The paper stores
`length` vectors of the model's width, from which the layer's maps compute keys and values (Table 8: 9.4 M parameters for
Gemma 2B at 256). Here the keys and values themselves are stored, which is the same function.

They start as normal numbers of deviation `std` by `seed`. Nothing in the original weights says what they should be, so the
model computes something else than before until they are trained. Use this step after `recursive`.

Not for encoders, ALiBi and sliding windows. No other format has such prefixes: `refold export` keeps them with `--to native`
only.
)";

}  // namespace

extern const Method prefix_method;
const Method prefix_method = {
    "prefix",
    "keys and values of each layer before the sequence, to be trained",
    "Relaxed Recursive Transformers: Effective Parameter Sharing with Layer-wise LoRA, Appendix K",
    kDocumentation + 1,
    {
        {"length", OptionSpec::Kind::integer, "64", "keys and values per layer", 1, 1 << 16},
        {"std", OptionSpec::Kind::number, "0.02", "deviation of the initial values", 0, 1e6},
        {"seed", OptionSpec::Kind::integer, "0", "of the initial values", 0, 4294967295.0},
    },
    apply,
};

}  // namespace refold
