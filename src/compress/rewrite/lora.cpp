#include "compress/rewrite/lora.h"

#include <algorithm>

#include "compress/method/lazy.h"
#include "compress/method/selection.h"

namespace refold {

size_t lora_module(Slot slot) {
    const auto projection = properties(slot).projection;
    if (!projection) return 3;
    if (*projection == Projection::query) return 0;
    return *projection == Projection::output ? 2 : 1;
}

std::array<int64_t, kLoraModules.size()> lora_ranks(const Options& options) {
    std::array<int64_t, kLoraModules.size()> out{};
    out.fill(options.integer("rank"));
    const std::string& given = options.text("ranks");
    if (given.empty()) return out;
    const bool by_module = given.find(',') != std::string::npos;
    const auto ranks = parse_ranks(given, by_module ? out.size() : 1);
    for (size_t m = 0; m < out.size(); ++m) out[m] = ranks[by_module ? m : 0];
    return out;
}

std::vector<OptionSpec> lora_rank_options() {
    return {
        {"rank", OptionSpec::Kind::integer, "64", "of every LoRA", 1, 1 << 20},
        {.name = "ranks",
         .fallback = "",
         .help = "q,kv,out,ffn: by module instead of rank; one number: the same for all"},
    };
}

Lora zero_lora(DType type, SlotShape shape, int64_t rank, uint64_t seed, size_t layer, Slot slot) {
    const std::string name = fmt::format("{}.{}.lora_a", layer, slot_name(slot));
    return {lazy::constant(type, {rank, shape.out}, 0.0F),
            lazy::random(type, {shape.in, rank}, {.seed = seed}, name)};
}

void add_lora(Model& model, size_t layer, Slot slot, Lora lora) {
    const std::string name = stem(tensor_name(*model.family, slot, layer));
    model.tensors[name + ".lora_b"] = std::move(lora.b);
    model.tensors[name + ".lora_a"] = std::move(lora.a);
    Expression& expression = model.topology.layers[layer].at(slot);
    expression = std::visit(
        [&]<typename E>(const E& base) -> Expression {
            if constexpr (std::is_constructible_v<Base, E>)
                return Plus{base, LowRank{name + ".lora_b", name + ".lora_a"}};
            else
                return base;
        },
        expression);
}

}  // namespace refold
