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

// `width` elements at a time, normalized as the model does it.
void norm_groups(Floats& rows, const Floats& gain, size_t width, const ModelConfig& config) {
    const auto count = static_cast<double>(width);
    for (size_t at = 0; at < rows.size(); at += width) {
        double mean = 0, variance = 0;
        for (size_t i = 0; i < width && config.norm == NormKind::layer; ++i)
            mean += static_cast<double>(rows[at + i]) / count;
        for (size_t i = 0; i < width; ++i) variance += std::pow(rows[at + i] - mean, 2) / count;
        const double scale = 1 / std::sqrt(variance + static_cast<double>(config.norm_eps));
        for (size_t i = at; i < at + width; ++i)
            rows[i] = static_cast<float>((rows[i] - mean) * scale) * gain[i % gain.size()];
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
    for (const Slot gain : {Slot::attn_k_norm, Slot::attn_k_norm_all}) {
        if (model.topology.has(layer, gain))
            norm_groups(rows.keys, weight(model, layer, gain),
                        static_cast<size_t>(normalized_width(gain, model.config, layer)), model.config);
    }
    return rows;
}

}  // namespace refold
