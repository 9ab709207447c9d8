// The device of the torch engine's tensors.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace refold {

// `name` is "auto" (CUDA if libtorch has it and finds a device, else the CPU), "cpu", "cuda", or a name in
// torch's notation. Of several processes on one machine, each takes the device with the number `local_rank`.
// Throws Error(unsupported) for "cuda" without a device, Error(usage) for more processes than devices and for
// unknown names.
at::Device device_of(const std::string& name, int local_rank = 0);

}  // namespace refold
