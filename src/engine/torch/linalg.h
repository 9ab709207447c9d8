// The large operations of linalg (linalg/device.h) in torch's, on a device of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "linalg/device.h"

namespace refold {

// With products of float32 in full precision (no TF32). Throws Error(internal) with libtorch's message when
// the device has too little memory.
std::unique_ptr<blas::Device> torch_linalg(at::Device device);

}  // namespace refold
