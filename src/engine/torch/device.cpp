#include "engine/torch/device.h"

#include <c10/util/Exception.h>
#include <torch/cuda.h>
#include <torch/version.h>

#include "core/error.h"

namespace refold {

at::Device device_of(const std::string& name, int local_rank) {
    if (name == "cpu") return at::kCPU;
    if (name != "auto" && name != "cuda") {
        try {
            return at::Device(name);
        } catch (const c10::Error&) {
            fail(ErrorCode::usage, "torch engine", "device: got '{}', expected auto, cpu or cuda", name);
        }
    }
    const auto devices = static_cast<int>(torch::cuda::device_count());
    if (devices == 0) {
        if (name == "auto") return at::kCPU;
        fail(ErrorCode::unsupported, "torch engine",
             "device: got cuda, but libtorch {} finds no CUDA device - refold must be built with a libtorch "
             "that has CUDA (Debian's has none: scripts/build-cuda, docs/training.md) and nvidia-smi must "
             "list "
             "a GPU; device=cpu needs neither",
             TORCH_VERSION);
    }
    if (local_rank >= devices) {
        fail(
            ErrorCode::usage, "torch engine",
            "process {} of this machine has no CUDA device of its own, there are {} - start as many as there "
            "are, set LOCAL_RANK (docs/training.md), or use device=cpu",
            local_rank, devices);
    }
    return {at::kCUDA, static_cast<c10::DeviceIndex>(local_rank)};
}

}  // namespace refold
