// The device that tests compare with the CPU's kernels: cpu-plain, or the one that REFOLD_TEST_DEVICE names
// (scripts/test-device).
#pragma once

#include <cstdlib>
#include <string>

#include "engine/devices.h"
#include "engine/engine.h"

namespace refold {

inline std::string tested_device() {
    const char* name = std::getenv("REFOLD_TEST_DEVICE");
    return name == nullptr ? std::string(kPlainCpu) : name;
}

inline EngineOptions on_tested_device(EngineOptions options) {
    options.device = tested_device();
    return options;
}

inline EngineOptions on_cpu(EngineOptions options) {
    options.device = "";
    return options;
}

}  // namespace refold
