// A device for calibration, which the torch engine's library looks up: its name, and linalg's operations on
// it.
#pragma once

#include <memory>
#include <string>

#include "linalg/device.h"

namespace refold {

struct DeviceRequest {
    std::string name;    // as EngineOptions::device
    int local_rank = 0;  // of several processes on one machine: see device_of()
};

struct FoundDevice {
    std::string name;                           // "cpu", "cuda:0"
    std::unique_ptr<blas::Device> linalg = {};  // null on the CPU
};

// Its symbol in the library.
inline constexpr const char* kFindDeviceSymbol = "refold_torch_find_device";
using FindDeviceFunction = void(const DeviceRequest& request, FoundDevice& result);

}  // namespace refold
