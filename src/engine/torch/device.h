// Where the torch engine's tensors are.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace refold {

// "auto": a CUDA device where libtorch was built with CUDA and finds one, else the CPU; "cpu"; "cuda"; other
// names as torch writes them. Of several processes of one machine each takes the device of its own number,
// `local_rank`. Throws Error(unsupported) for "cuda" without a device, Error(usage) for more processes than
// devices and for unknown names.
at::Device device_of(const std::string& name, int local_rank = 0);

}  // namespace refold
