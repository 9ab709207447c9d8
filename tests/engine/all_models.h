// Every family's forward pass, every weight expression, every source of attention, for the torch engine.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "engine/compare.h"
#include "engine/expression_models.h"
#include "engine/synthetic_models.h"

namespace refold {

inline constexpr ExpressionShape kSmall{
    .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .ff = 12, .vocab = 40};

struct Case {
    std::string name;
    Model model;
};

inline std::vector<Case> all_cases() {
    std::vector<Case> out;
    for (const auto& [name, model, input] : synthetic_models()) out.push_back({name, model});
    uint32_t seed = 0;
    for (const auto& [name, build] : expressions::cases()) {
        ++seed;
        ExpressionBuilder builder(kExpressionFamilies[seed % kExpressionFamilies.size()], seed, kSmall);
        if (!has_groups(builder.model.config.family) && name.find("groups") != std::string::npos) continue;
        build(builder);
        out.push_back({name + " of " + builder.model.config.family, builder.finish()});
    }
    return out;
}

inline at::Tensor batch_of(const ModelConfig& config, int64_t sequences, int64_t length) {
    const auto tokens = random_tokens(static_cast<size_t>(sequences * length), config.n_vocab, 5);
    return at::tensor(at::ArrayRef<int32_t>(tokens)).to(at::kLong).reshape({sequences, length});
}

}  // namespace refold
