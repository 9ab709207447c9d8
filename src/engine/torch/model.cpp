#include "engine/torch/model.h"

#include "core/error.h"
#include "engine/positions.h"
#include "engine/torch/ops.h"

namespace refold {
namespace {

void check(std::span<const int32_t> values, int64_t limit, size_t count, const char* what) {
    if (values.size() != count)
        fail(ErrorCode::input, "torch engine", "{} {} for {} tokens", values.size(), what, count);
    for (const int32_t value : values) {
        if (value < 0 || value >= limit)
            fail(ErrorCode::input, "torch engine", "{} must be 0 to {}, got {}", what, limit - 1, value);
    }
}

}  // namespace

TorchModel::TorchModel(const Model& model, bool trainable, at::ScalarType type, FactoredExecution factored)
    : config_(model.config), weights_(model, type, trainable, factored) {}

TorchOutput TorchModel::forward(std::span<const int32_t> tokens, std::span<const int32_t> token_types,
                                std::span<const int32_t> mask) const {
    const size_t count = tokens.size();
    if (count == 0) fail(ErrorCode::input, "torch engine", "no tokens given");
    check(tokens, config_.n_vocab, count, "token ids");
    if (!token_types.empty()) check(token_types, config_.n_token_types, count, "token types");
    if (!mask.empty()) check(mask, 2, count, "mask values");
    const auto positions = positions_of(config_, tokens, 0);
    if (config_.n_learned_positions > 0)
        check(positions, config_.n_learned_positions, count, "learned positions");
    const auto length = static_cast<int64_t>(count);
    const auto result =
        torch_forward(config_, weights_, {tokens, positions, token_types, mask, 0, length, length}, nullptr);
    return {result.hidden, result.logits.value_or(at::Tensor()), result.pooled.value_or(at::Tensor())};
}

}  // namespace refold
