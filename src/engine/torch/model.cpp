#include "engine/torch/model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>

#include "core/error.h"
#include "engine/positions.h"
#include "engine/torch/functions.h"
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

void refuse_streams(const ModelConfig& config) {
    if (config.n_stream > 1)
        fail(ErrorCode::unsupported, "torch engine", "a range of layers of a model with {} residual streams",
             config.n_stream);
}

// A layer and the layer that it takes attention from must be in the same range.
LayerRange checked(const Topology& topology, const ModelConfig& config,
                   const std::optional<LayerRange>& given) {
    if (given) refuse_streams(config);
    const LayerRange range = given.value_or(LayerRange{0, topology.layers.size()});
    if (range.first > range.last || range.last > topology.layers.size()) {
        fail(ErrorCode::usage, "torch engine", "layers {} to {} of a model that has {}", range.first,
             range.last, topology.layers.size());
    }
    for (size_t p = range.first; p < range.last; ++p) {
        if (const size_t from = topology.source(p).from(p); !range.contains(from)) {
            fail(ErrorCode::usage, "torch engine",
                 "layer {} takes its attention from layer {}, which is not among layers {} to {}", p, from,
                 range.first, range.last);
        }
    }
    return range;
}

}  // namespace

// One forward pass. Layers that are computed again in the backward pass hold a reference to it.
struct TorchModel::Pass {
    Pass(const TorchModel& of, TorchStep over)
        : model(of),
          step(std::move(over)),
          ops(of.config_, of.weights_, step),
          // No layer drops tokens: results are wanted for all.
          parts(ops, of.config_, kWholeModel) {}

    // With checkpointing: values that layers lend to later ones, by layer.
    using Loans = std::map<size_t, std::vector<at::Tensor>>;

    // The residual stream after layer p.
    static at::Tensor layer(const std::shared_ptr<Pass>& pass, size_t p, const at::Tensor& x, Loans& lent) {
        // What all layers read besides the residual stream would get no gradients.
        const bool inputs_of_layers = pass->model.config_.n_layer_input > 0;
        if (!pass->model.execution_.checkpointing || !at::GradMode::is_enabled() || inputs_of_layers)
            return pass->parts.layer(p, x);
        std::vector<at::Tensor> inputs = {x};
        const size_t source = pass->ops.source(p).from(p);
        if (source != p) {
            const auto& loans = lent.at(source);
            inputs.insert(inputs.end(), loans.begin(), loans.end());
        }
        // Returns the residual stream, then the values that the layer lends.
        const auto body = [pass, p, source](const std::vector<at::Tensor>& in) {
            if (source != p) pass->ops.give_loans(source, {in.begin() + 1, in.end()});
            std::vector<at::Tensor> out = {pass->parts.layer(p, in[0])};
            if (source != p) pass->ops.take_loans(source);
            for (at::Tensor& loan : pass->ops.take_loans(p)) out.push_back(std::move(loan));
            return out;
        };
        std::vector<at::Tensor> out = recomputed(body, inputs, pass->model.weights_.leaves_of(p));
        if (out.size() > 1) lent[p] = {out.begin() + 1, out.end()};
        return out[0];
    }

    const TorchModel& model;
    const TorchStep step;
    TorchOps ops;
    Forward<TorchOps> parts;
};

TorchModel::TorchModel(const Model& model, bool trainable, at::TensorOptions options,
                       FactoredExecution factored, std::optional<LayerRange> range)
    : config_(model.config),
      range_(checked(model.topology, model.config, range)),
      weights_(model, options, trainable, factored, range) {}

void TorchModel::set_execution(const Execution& execution) {
    execution_ = execution;
    weights_.set_products(execution.bf16 ? at::kBFloat16 : weights_.type());
}

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
    const TorchStep step = torch_step({tokens, positions, token_types, mask, 0, length, length}, device());
    const auto result = torch_forward(config_, weights_, step, nullptr);
    return {result.hidden, result.logits.value_or(at::Tensor()), result.pooled.value_or(at::Tensor())};
}

TorchModel::Hidden TorchModel::hidden(const at::Tensor& tokens, std::span<const size_t> exits) const {
    for (const size_t exit : exits) {
        if (exit == 0 || exit > weights_.n_layer()) {
            fail(ErrorCode::usage, "torch engine", "an exit must be after 1 to {} layers, got {}",
                 weights_.n_layer(), exit);
        }
    }
    const auto pass = std::make_shared<Pass>(*this, torch_step(config_, tokens));
    Hidden hidden;
    hidden.exits.resize(exits.size());
    Pass::Loans lent;
    at::Tensor x = pass->parts.embeddings();
    for (size_t p = 0; p < weights_.n_layer(); ++p) {
        x = Pass::layer(pass, p, x, lent);
        for (size_t e = 0; e < exits.size(); ++e) {
            if (exits[e] == p + 1) hidden.exits[e] = pass->parts.exit_norm(p, x);
        }
    }
    hidden.final = pass->parts.final_norm(x);
    return hidden;
}

at::Tensor TorchModel::logits(const at::Tensor& hidden, size_t exit) const {
    if (!weights_.has(kWholeModel, Slot::output))
        fail(ErrorCode::unsupported, "torch engine", "'{}' has no output layer", config_.family);
    const TorchStep none;
    TorchOps ops(config_, weights_, none);
    Forward<TorchOps> parts(ops, config_, kWholeModel);
    return (exit == 0 ? parts.logits(hidden) : parts.exit_logits(exit - 1, hidden)).to(weights_.type());
}

at::Tensor TorchModel::range(const at::Tensor& residual) const {
    refuse_streams(config_);
    if (residual.dim() != 3 || residual.size(2) != config_.n_embd)
        fail(ErrorCode::input, "torch engine", "a residual stream is [sequences, tokens, {}]",
             config_.n_embd);
    TorchStep step;
    step.sequences = residual.size(0);
    step.length = step.outputs = step.sequence_length = residual.size(1);
    const auto pass = std::make_shared<Pass>(*this, std::move(step));
    Pass::Loans lent;
    at::Tensor x = residual.reshape({-1, config_.n_embd});
    for (size_t p = range_.first; p < range_.last; ++p) x = Pass::layer(pass, p, x, lent);
    return x.reshape(residual.sizes());
}

}  // namespace refold
