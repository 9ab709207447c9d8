#include "compress/pruning/expert_importance.h"

#include <cmath>

#include "core/group.h"
#include "linalg/blas.h"
#include "model/activation.h"
#include "model/materialize.h"
#include "model/routing.h"

namespace refold {
namespace {

using Floats = std::vector<float>;

Floats weights_of(const Model& model, size_t layer, Slot slot) {
    if (!model.topology.has(layer, slot)) return {};
    return materialize(model, model.topology.at(layer, slot), slot, layer);
}

// y = W x + b for all tokens. W [rows][columns], x [tokens][columns], b [rows] or null.
Floats linear(const float* weights, const float* bias, std::span<const float> x, int64_t rows,
              int64_t columns) {
    const auto tokens = static_cast<int64_t>(x.size()) / columns;
    Floats y(static_cast<size_t>(tokens * rows));
    blas::multiply(blas::Op::transposed, blas::Op::plain, {rows, tokens, columns}, weights, x.data(),
                   y.data());
    if (bias != nullptr) {
        for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i % static_cast<size_t>(rows)];
    }
    return y;
}

const float* part_of_expert(const Floats& weights, int64_t expert, int64_t size) {
    return weights.empty() ? nullptr : weights.data() + expert * size;
}

}  // namespace

ExpertImportance::ExpertImportance(const Model& model, size_t layer, ExpertMeasure measure)
    : model_(model),
      layer_(layer),
      measure_(measure),
      router_(weights_of(model, layer, Slot::ffn_router)),
      router_bias_(weights_of(model, layer, Slot::ffn_router_bias)),
      sums_(static_cast<size_t>(model.config.n_expert_of(layer))),
      uses_(sums_.size()) {
    if (measure == ExpertMeasure::uses) return;
    gate_ = weights_of(model, layer, Slot::ffn_gate_exps);
    up_ = weights_of(model, layer, Slot::ffn_up_exps);
    down_ = weights_of(model, layer, Slot::ffn_down_exps);
    gate_bias_ = weights_of(model, layer, Slot::ffn_gate_exps_bias);
    up_bias_ = weights_of(model, layer, Slot::ffn_up_exps_bias);
    down_bias_ = weights_of(model, layer, Slot::ffn_down_exps_bias);
}

void ExpertImportance::add(std::span<const float> inputs) {
    const ModelConfig& c = model_.config;
    const auto width = static_cast<size_t>(c.n_embd), experts = sums_.size();
    const Floats scores = linear(router_.data(), router_bias_.empty() ? nullptr : router_bias_.data(), inputs,
                                 static_cast<int64_t>(experts), c.n_embd);
    const size_t tokens = inputs.size() / width;
    std::vector<Floats> rows(experts), weights(experts);
    for (size_t t = 0; t < tokens; ++t) {
        for (const Route& r :
             route(std::span(scores).subspan(t * experts, experts), c.n_expert_used, c.norm_expert_weights)) {
            const auto e = static_cast<size_t>(r.expert);
            ++uses_[e];
            if (measure_ == ExpertMeasure::uses) continue;
            const auto row = inputs.subspan(t * width, width);
            rows[e].insert(rows[e].end(), row.begin(), row.end());
            weights[e].push_back(r.weight);
        }
    }
    tokens_ += static_cast<double>(tokens);
    for (size_t e = 0; e < experts; ++e) {
        if (!rows[e].empty()) add_outputs(static_cast<int64_t>(e), rows[e], weights[e]);
    }
}

void ExpertImportance::add_outputs(int64_t expert, std::span<const float> inputs,
                                   std::span<const float> weights) {
    const ModelConfig& c = model_.config;
    const int64_t matrix = c.n_ff_expert * c.n_embd;
    const auto inner_of = [&](const Floats& map, const Floats& bias) {
        return linear(part_of_expert(map, expert, matrix), part_of_expert(bias, expert, c.n_ff_expert),
                      inputs, c.n_ff_expert, c.n_embd);
    };
    Floats inner = inner_of(gate_, gate_bias_);
    const Floats up = inner_of(up_, up_bias_);
    for (size_t i = 0; i < inner.size(); ++i) inner[i] = gated(c.activation, inner[i], up[i]);
    const Floats out = linear(part_of_expert(down_, expert, matrix),
                              part_of_expert(down_bias_, expert, c.n_embd), inner, c.n_embd, c.n_ff_expert);
    for (size_t t = 0; t < weights.size(); ++t) {
        const auto row =
            std::span(out).subspan(t * static_cast<size_t>(c.n_embd), static_cast<size_t>(c.n_embd));
        sums_[static_cast<size_t>(expert)] +=
            static_cast<double>(weights[t]) * std::sqrt(blas::energy(row, "output of an expert"));
    }
}

std::vector<double> ExpertImportance::finish() const {
    std::vector<double> all = sums_;
    all.insert(all.end(), uses_.begin(), uses_.end());
    all.push_back(tokens_);
    group().sum(all);
    std::vector<double> out(sums_.size());
    for (size_t e = 0; e < out.size(); ++e) {
        const double uses = all[out.size() + e];
        if (uses > 0) out[e] = measure_ == ExpertMeasure::reap ? all[e] / uses : uses / all.back();
    }
    return out;
}

}  // namespace refold
