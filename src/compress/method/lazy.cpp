#include "compress/method/lazy.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "linalg/blas.h"

namespace refold::lazy {

std::vector<float> floats(const Tensor& tensor, const Files& files) {
    std::vector<float> out(static_cast<size_t>(tensor.elements()));
    {
        const TensorBytes bytes(tensor);
        dequantize(tensor.type, bytes.bytes(), out);
    }
    if (files) files->release(tensor.mapped);
    return out;
}

std::vector<double> numbers(const Tensor& tensor) {
    const std::vector<float> values = floats(tensor, nullptr);
    return {values.begin(), values.end()};
}

Tensor computed(DType type, std::vector<int64_t> shape, std::function<std::vector<float>()> values) {
    const int64_t row = shape[0];
    Tensor tensor{type, std::move(shape), {}, {}};
    tensor.produce = [type, row, values = std::move(values)] {
        const std::vector<float> numbers = values();
        if (!std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); }))
            fail(ErrorCode::input, "weights", "a computed tensor is not finite: are the model's weights?");
        return quantize(type, numbers, row);
    };
    return tensor;
}

static size_t count(const std::vector<int64_t>& shape) {
    size_t elements = 1;
    for (const int64_t n : shape) elements *= static_cast<size_t>(n);
    return elements;
}

Tensor constant(DType type, std::vector<int64_t> shape, float value) {
    const size_t elements = count(shape);
    return computed(type, std::move(shape), [=] { return std::vector<float>(elements, value); });
}

// FNV-1a, so that every tensor has its own random sequence.
static uint64_t hash(const std::string& name) {
    uint64_t h = 0xcbf29ce484222325ULL;
    for (const unsigned char c : name) h = (h ^ c) * 0x100000001b3ULL;
    return h;
}

Tensor random(DType type, std::vector<int64_t> shape, const Gaussian& gaussian, const std::string& name) {
    const size_t elements = count(shape);
    const uint64_t seed = gaussian.seed * 0x9e3779b97f4a7c15ULL ^ hash(name);
    return computed(type, std::move(shape), [elements, seed, deviation = gaussian.deviation] {
        blas::Normal normal(seed);
        std::vector<float> values(elements);
        for (float& x : values) x = static_cast<float>(normal()) * deviation;
        return values;
    });
}

Tensor mean(DType type, const std::vector<Tensor>& tensors, const Files& files) {
    return computed(type, tensors.front().shape, [tensors, files] {
        std::vector<float> sum = floats(tensors.front(), files);
        for (size_t i = 1; i < tensors.size(); ++i) {
            const std::vector<float> next = floats(tensors[i], files);
            for (size_t j = 0; j < sum.size(); ++j) sum[j] += next[j];
        }
        for (float& x : sum) x /= static_cast<float>(tensors.size());
        return sum;
    });
}

}  // namespace refold::lazy
