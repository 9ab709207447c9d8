#include "calibrate/calibration_device.h"

#include "core/error.h"
#include "core/process_variables.h"
#include "engine/devices.h"
#include "engine/torch/found_device.h"
#include "engine/torch/plugin.h"

namespace refold {
namespace {

CalibrationDevice g_where;

FoundDevice find(const std::string& name, int local_rank) {
    return torch_plugin::ask<FoundDevice>(kFindDeviceSymbol, DeviceRequest{name, local_rank});
}

}  // namespace

OnDevice::OnDevice(const CalibrationDevice& where, const blas::Worth& worth) {
    if (where.engine == EngineKind::ggml) {
        if (!where.device.empty() && where.device != kCpu)
            fail(ErrorCode::usage, "calibration",
                 "device {}: compression runs on other devices than the CPU by the torch engine alone - add "
                 "--engine torch, whose devices are auto, cpu, cuda and cuda:N",
                 where.device);
        return;
    }
    FoundDevice found = find(where.device.empty() ? "auto" : where.device, where.local_rank);
    g_where = {where.engine, found.name, where.local_rank};
    blas::set_device(std::move(found.linalg), worth);
}

OnDevice::~OnDevice() {
    blas::set_device(nullptr);
    g_where = {};
}

EngineOptions calibration_engine(int threads) {
    EngineOptions options;
    options.kind = g_where.engine;
    options.device = g_where.device;
    options.threads = threads;
    return options;
}

std::string calibration_device() { return g_where.device.empty() ? std::string(kCpu) : g_where.device; }

bool uses_torch() { return g_where.engine == EngineKind::torch; }

std::string gradient_device(const std::string& option) {
    return option == "auto" && uses_torch() ? g_where.device : option;
}

void check_gradient_device(const std::string& name) { find(name, local_rank()); }

}  // namespace refold
