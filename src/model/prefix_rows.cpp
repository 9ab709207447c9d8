#include "model/prefix_rows.h"

#include <cblas.h>

#include <cmath>

#include "model/materialize.h"

namespace refold {
namespace {

using Floats = std::vector<float>;

Floats weight(const Model& model, size_t layer, Slot slot) {
    return materialize(model, model.topology.at(layer, slot), slot, layer);
}

// Each head of each row, normalized as the model does it.
void norm_heads(Floats& rows, const Floats& gain, const ModelConfig& config) {
    const auto width = static_cast<double>(gain.size());
    for (size_t at = 0; at < rows.size(); at += gain.size()) {
        double mean = 0, variance = 0;
        for (size_t i = 0; i < gain.size() && config.norm == NormKind::layer; ++i)
            mean += static_cast<double>(rows[at + i]) / width;
        for (size_t i = 0; i < gain.size(); ++i) variance += std::pow(rows[at + i] - mean, 2) / width;
        const double scale = 1 / std::sqrt(variance + static_cast<double>(config.norm_eps));
        for (size_t i = 0; i < gain.size(); ++i)
            rows[at + i] = static_cast<float>((rows[at + i] - mean) * scale) * gain[i];
    }
}

Floats projected(const Model& model, size_t layer, Slot slot, const Floats& vectors) {
    const SlotShape shape = slot_shape(slot, model.config, layer);
    const Floats map = weight(model, layer, slot);
    const int64_t rows = model.config.n_prefix;
    Floats out(static_cast<size_t>(rows * shape.out));
    if (const auto bias = bias_of(slot); bias && model.topology.has(layer, *bias)) {
        const Floats row = weight(model, layer, *bias);
        for (size_t i = 0; i < out.size(); ++i) out[i] = row[i % row.size()];
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(rows), static_cast<int>(shape.out),
                static_cast<int>(shape.in), 1.0F, vectors.data(), static_cast<int>(shape.in), map.data(),
                static_cast<int>(shape.in), 1.0F, out.data(), static_cast<int>(shape.out));
    return out;
}

}  // namespace

PrefixRows prefix_rows(const Model& model, size_t layer) {
    if (!model.topology.has(layer, Slot::attn_prefix))
        return {weight(model, layer, Slot::attn_prefix_k), weight(model, layer, Slot::attn_prefix_v)};
    const Floats vectors = weight(model, layer, Slot::attn_prefix);
    PrefixRows rows{projected(model, layer, Slot::attn_k, vectors),
                    projected(model, layer, Slot::attn_v, vectors)};
    if (model.topology.has(layer, Slot::attn_k_norm))
        norm_heads(rows.keys, weight(model, layer, Slot::attn_k_norm), model.config);
    return rows;
}

}  // namespace refold
