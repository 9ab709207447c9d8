// Where compression computes: activations of calibration text, and what is solved from them. By default
// ggml's engine and BLAS on the CPU.
#pragma once

#include <string>

#include "engine/engine.h"
#include "linalg/device.h"

namespace refold {

struct CalibrationDevice {
    EngineKind engine = EngineKind::ggml;
    std::string device = "";  // of the torch engine, as EngineOptions::device
    int local_rank = 0;       // of several processes on one machine, each of which takes a GPU of its own
};

// While it lives, calibration runs layers by this engine. On a device that is not the CPU, linalg's
// operations run as well, if they are `worth` it. One at a time. Throws Error(usage) for a device of ggml's
// engine other than the CPU, and as device_of() does; Error(unsupported) in a build without libtorch.
class OnDevice {
public:
    explicit OnDevice(const CalibrationDevice& where, const blas::Worth& worth = {});
    ~OnDevice();
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;
};

// For the engines of calibration: kind, device and threads.
EngineOptions calibration_engine(int threads);
// "cpu", or as torch calls it: "cuda:0".
std::string calibration_device();
bool uses_torch();
// Whether no more than a layer of a model may be loaded at a time, because a device's memory holds no more.
inline bool loads_layer_by_layer() { return uses_torch(); }
// The device for gradients, from a step's option: where the option says auto, that of an OnDevice by torch.
std::string gradient_device(const std::string& option);
// Before long work that such a device waits for: throws as device_of() does where this process has none of
// this name, and Error(unsupported) in a build without libtorch.
void check_gradient_device(const std::string& name);

}  // namespace refold
