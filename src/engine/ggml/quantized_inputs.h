// Inputs of products with panels: in 8 bits for quantized weights, in BF16 for weights in BF16 where the CPU
// multiplies pairs of them, else as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace refold {

constexpr int64_t kInputGroup = 32;  // numbers that share a scale: a block of Q8_0

// Which forms of the inputs some weights need.
struct InputForms {
    bool bytes = false, pairs = false;
};

// Tokens, quantized as ggml does for Q8_0, or rounded to BF16. Forms that are not needed are not filled.
struct Inputs {
    const int8_t* quants;  // [token][groups * kInputGroup]
    const float* scales;   // [token][groups]
    // [token][groups][3]: minus the sums of the quants of each half of a group, and of both.
    const int32_t* negative_sums;
    const float* values;    // [token][groups][3]: the sums, times the scale
    int64_t groups;         // of a token
    const uint32_t* pairs;  // [token][groups][kInputGroup / 2]: two numbers in BF16 each
    const float* floats;    // as they were given, `stride` floats from token to token
    int64_t stride;

    // Without the first `count` groups of each token.
    Inputs from(int64_t count) const {
        return {quants + count * kInputGroup, scales + count, negative_sums + 3 * count,
                values + 3 * count,           groups,         pairs + count * (kInputGroup / 2),
                floats + count * kInputGroup, stride};
    }
    // Without the first `count` tokens.
    Inputs after(int64_t count) const {
        Inputs later = from(count * groups);
        later.floats = floats + count * stride;
        return later;
    }
};

// Owns the data of Inputs.
class QuantizedInputs {
public:
    // Allocates for `tokens` tokens of `columns` numbers, whole groups but for inputs that stay as they are.
    void fit(int64_t tokens, int64_t columns, InputForms forms);
    // Quantizes tokens [first, last) of x, which are `stride` floats apart. Threads may share the tokens.
    void quantize(const float* x, int64_t stride, int64_t first, int64_t last);
    // Of tokens that were quantized from x.
    Inputs get(const float* x, int64_t stride) const {
        return {
            quants_.data(), scales_.data(), negative_sums_.data(), values_.data(), groups_, pairs_.data(), x,
            stride};
    }
    uint64_t bytes() const {
        return quants_.size() + (scales_.size() + values_.size()) * sizeof(float) +
               (negative_sums_.size() + pairs_.size()) * sizeof(int32_t);
    }

private:
    InputForms forms_;
    int64_t groups_ = 0;  // per token
    std::vector<int8_t> quants_;
    std::vector<float> scales_, values_;
    std::vector<int32_t> negative_sums_;
    std::vector<uint32_t> pairs_;
};

}  // namespace refold
