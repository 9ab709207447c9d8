// The device of the torch engine's tensors.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "core/process_variables.h"

namespace refold {

// `name` is "auto" (CUDA if libtorch has it and finds a device, else the CPU), "cpu", "cuda", or a name in
// torch's notation, such as "cuda:1". Of several processes on one machine, each takes the device with the
// number `number`, unless the name has one. Throws Error(unsupported) for "cuda" without a device,
// Error(usage) for more processes than devices, and for unknown names and devices that are not there.
at::Device device_of(const std::string& name, int number = local_rank());

// Products of float32 take no shorter numbers (TF32) from now on.
void full_precision();

}  // namespace refold
