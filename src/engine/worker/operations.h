// What a worker demands of an operation that a client sends, before ggml's kernels see it: they end the
// process where an operation is not what ggml's own functions make, and some read or write beyond its ends.
#pragma once

#include <cstdint>
#include <string>

struct ggml_tensor;

namespace refold::rpc {

// Whether the operation only names memory of another tensor: nothing is computed.
bool is_view(const ggml_tensor* tensor);

// What is wrong with the operation: its kind, which must be one that refold's graphs have (device_ops.h), the
// number of its sources, their shapes, types and strides, and its parameters. Empty: nothing is. Memory is
// not looked at.
std::string problem_of(const ggml_tensor* operation);

// Numbers of rows or matrices, all of which must be below `bound`.
struct Numbers {
    const ggml_tensor* tensor = nullptr;
    int64_t bound = 0;
};
// Those that the operation takes, if it does. problem_of() must have found nothing.
Numbers numbers_of(const ggml_tensor* operation);
// Whether all that the operation gives are such numbers, whatever it is given: an order of so few.
bool gives_numbers_below(const ggml_tensor* operation, int64_t bound);

}  // namespace refold::rpc
