// Prefix tuning: vectors of every layer's own that give keys and values before the sequence.
// "Relaxed Recursive Transformers: Effective Parameter Sharing with Layer-wise LoRA", Appendix K.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "compress/training/random_start.h"
#include "core/error.h"

namespace refold::prefix_method {
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
    const lazy::Gaussian gaussian = random_start(step.options);
    const bool vectors = step.options.text("form") == "vectors";
    using Parts = std::vector<std::pair<Slot, const char*>>;
    const Parts parts = vectors ? Parts{{Slot::attn_prefix, ""}}
                                : Parts{{Slot::attn_prefix_k, "_k"}, {Slot::attn_prefix_v, "_v"}};
    int64_t parameters = 0;
    for (size_t p = 0; p < out.topology.layers.size(); ++p) {
        if (out.config.n_head_kv_of(p) == 0) continue;
        for (const auto& [slot, part] : parts) {
            const SlotShape shape = slot_shape(slot, out.config, p);
            const std::string name = fmt::format("blk.{}.attn_prefix{}", p, part);
            out.tensors[name] = lazy::random(DType::F32, {shape.in, shape.out}, gaussian, name);
            out.topology.layers[p][slot] = Dense{name};
            parameters += shape.in * shape.out;
        }
    }
    step.report.lines.push_back(
        fmt::format("{} {} before every sequence, {} parameters; random until they are trained",
                    out.config.n_prefix, vectors ? "vectors of each layer" : "keys and values", parameters));
    step.report.details =
        nlohmann::json{{"form", step.options.text("form")}, {"parameters", parameters}}.dump();
    return out;
}

std::vector<OptionSpec> option_specs() {
    std::vector<OptionSpec> specs = random_start_options();
    specs.insert(specs.begin(),
                 {{"length", OptionSpec::Kind::integer, "64", "keys and values per layer", 1, 1 << 16},
                  {.name = "form",
                   .kind = OptionSpec::Kind::choice,
                   .fallback = "vectors",
                   .help = "what is stored: vectors that the layer's maps make keys and values of, or these",
                   .choices = {"vectors", "kv"}}});
    return specs;
}

constexpr const char* kDocumentation = R"(
Each layer gets `length` keys and values of its own, which all tokens see before the sequence: the paper's second way to relax
a recursive model (Appendix K), for any decoder. They have no position: keys are used without rotation, of which the paper says
nothing.

**Form** (`form`): each layer stores
- `vectors`: `length` vectors of the model's width, from which the layer's own key and value maps, with their biases, LoRA and
  key norm, make keys and values. This is the paper's form (Table 8: 9.4 M parameters for Gemma 2B at length 256). Training them
  trains the maps as well, and a later change of the maps changes the keys and values. Vectors meet the maps as they are,
  without the norm before the attention, of which the paper says nothing.
- `kv`: the keys and values themselves, not in the paper: 2 x KV width numbers in place of the model's width (2.4 M there). Keys
  and values are free of each other and of the maps, where those made of one vector are not: with multi-head attention the
  vectors give half as many numbers as keys and values have. So the two forms train differently.

They start as normal numbers of deviation `std` by `seed`. Nothing in the original weights says what they should be, so the
model computes something else than before until they are trained. Use this step after `recursive`. The KV cache holds keys and
values in both forms, computed once when a model is loaded.

Not for encoders, ALiBi and sliding windows. No other format has such prefixes: `refold export` keeps them with `--to native`
only.
)";

}  // namespace

extern const Method method;
const Method method = {
    "prefix",
    "vectors of each layer that give keys and values before the sequence, to be trained",
    "Relaxed Recursive Transformers: Effective Parameter Sharing with Layer-wise LoRA, Appendix K",
    kDocumentation + 1,
    option_specs(),
    apply,
};

}  // namespace refold::prefix_method
