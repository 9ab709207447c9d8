#include "engine/torch/device.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <torch/cuda.h>
#include <torch/version.h>

#include "core/error.h"

namespace refold {

static at::Device device_named(const std::string& name) {
    try {
        return at::Device(name);
    } catch (const c10::Error&) {
        fail(ErrorCode::usage, "torch engine", "device: got '{}', expected auto, cpu, cuda or cuda:N", name);
    }
}

at::Device device_of(const std::string& name, int number) {
    if (name == "cpu") return at::kCPU;
    const bool any = name == "auto" || name == "cuda";
    const at::Device given = any ? at::Device(at::kCUDA) : device_named(name);
    if (!given.is_cuda())
        return given.has_index() || given.is_cpu()
                   ? given
                   : at::Device(given.type(), static_cast<c10::DeviceIndex>(number));
    const auto devices = static_cast<int>(torch::cuda::device_count());
    if (devices == 0) {
        if (name == "auto") return at::kCPU;
        fail(ErrorCode::unsupported, "torch engine",
             "device: got {}, but libtorch {} finds no CUDA device - refold must be built with a libtorch "
             "that has CUDA (Debian's has none: scripts/build-cuda, docs/training.md) and nvidia-smi must "
             "list "
             "a GPU; device=cpu needs neither",
             name, TORCH_VERSION);
    }
    if (!any) {
        if (given.index() >= devices)
            fail(ErrorCode::usage, "torch engine", "device: got {}, there are cuda:0 to cuda:{}", name,
                 devices - 1);
        return given;
    }
    if (number >= devices) {
        fail(
            ErrorCode::usage, "torch engine",
            "process {} of this machine has no CUDA device of its own, there are {} - start as many as there "
            "are, set LOCAL_RANK (docs/training.md), or use device=cpu",
            number, devices);
    }
    return {at::kCUDA, static_cast<c10::DeviceIndex>(number)};
}

void full_precision() { at::globalContext().setAllowTF32CuBLAS(false); }

}  // namespace refold
