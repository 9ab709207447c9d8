// Models with a few heads, whose weights a test can state by hand.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/model.h"
#include "model/validate.h"

namespace refold {

struct SmallShape {
    int64_t layers = 3, heads = 2, kv_heads = 2, head_dim = 2, embd = 4, ff = 32, vocab = 8;
};

// Element [row][column] of a slot's dense matrix in a layer.
using WeightOf = std::function<float(size_t layer, Slot slot, int64_t row, int64_t column)>;

inline Tensor owned_tensor(DType type, std::vector<int64_t> shape, std::vector<std::byte> bytes) {
    Tensor tensor{type, std::move(shape), {}, {}};
    tensor.produce = [packed = std::move(bytes)] { return packed; };
    return tensor;
}

// As F32 also with values that refold would refuse to write.
inline Tensor float_tensor(std::vector<int64_t> shape, const std::vector<float>& values,
                           DType type = DType::F32) {
    const int64_t row = shape[0];
    if (type == DType::F32) {
        const auto bytes = std::as_bytes(std::span(values));
        return owned_tensor(type, std::move(shape), {bytes.begin(), bytes.end()});
    }
    return owned_tensor(type, std::move(shape), quantize(type, values, row));
}

// A llama model; `types` are the attention matrices' types (F32 when not given).
inline Model small_model(const SmallShape& s, const WeightOf& weight,
                         const std::map<Slot, DType>& types = {}) {
    Model model;
    model.label = "small model";
    model.family = &find_family("llama");
    const auto number = [&](const char* key, int64_t value) {
        model.metadata.set(std::string("llama.") + key, GgufValue::u32(static_cast<uint32_t>(value)));
    };
    model.metadata.set("general.architecture", GgufValue::string("llama"));
    number("block_count", s.layers);
    number("embedding_length", s.embd);
    number("attention.head_count", s.heads);
    number("attention.head_count_kv", s.kv_heads);
    number("attention.key_length", s.head_dim);
    number("attention.value_length", s.head_dim);
    number("feed_forward_length", s.ff);
    number("context_length", 64);
    model.metadata.set("llama.attention.layer_norm_rms_epsilon", GgufValue::f32(1e-5F));
    model.config = model.family->read_config(model.metadata);
    model.config.n_vocab = s.vocab;
    const auto layers = static_cast<size_t>(s.layers);
    const auto add = [&](const std::string& name, Slot slot, size_t layer) {
        const SlotShape shape = slot_shape(slot, model.config);
        std::vector<float> values;
        for (int64_t r = 0; r < shape.out; ++r) {
            for (int64_t c = 0; c < shape.in; ++c) values.push_back(weight(layer, slot, r, c));
        }
        const auto type = types.find(slot);
        std::vector<int64_t> dims =
            is_vector(slot) ? std::vector{shape.in} : std::vector{shape.in, shape.out};
        model.tensors[name] =
            float_tensor(std::move(dims), values, type == types.end() ? DType::F32 : type->second);
    };
    for (size_t p = 0; p < layers; ++p) {
        for (const auto& description : model.family->layer_slots) {
            if (description.required && is_of_layer(description.slot, false))
                add(tensor_name(description, p), description.slot, p);
        }
    }
    for (const auto& description : model.family->model_slots) {
        if (description.required && description.fallback == nullptr)
            add(tensor_name(description, 0), description.slot, layers);
    }
    model.topology = implied_topology(*model.family, model.config, layers,
                                      [&](const std::string& name) { return model.tensors.contains(name); });
    validate(model);
    return model;
}

// Different values without a pattern; the same in every run.
inline float scattered(size_t layer, Slot slot, int64_t row, int64_t column) {
    uint64_t x =
        (layer + 1) * 0x9E3779B97F4A7C15ULL ^ (static_cast<uint64_t>(slot) + 1) * 0xBF58476D1CE4E5B9ULL ^
        (static_cast<uint64_t>(row) * 4099 + static_cast<uint64_t>(column) + 1) * 0x94D049BB133111EBULL;
    x ^= x >> 31;
    x *= 0xD6E8FEB86659FD93ULL;
    x ^= x >> 29;
    return static_cast<float>(static_cast<int64_t>(x % 20001) - 10000) / 10000.0F;
}

}  // namespace refold
