// The devices that can run a model: the CPU, those of ggml's backends, which are modules beside the program
// (libggml-vulkan.so and others), and those of workers on other machines (rpc_worker.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/worker_access.h"
#include "refold/error.h"

struct ggml_backend_device;

namespace refold {

// The CPU by refold's kernels; and by ggml's own operations alone, which is what other devices compute.
inline constexpr std::string_view kCpu = "cpu", kPlainCpu = "cpu-plain";
// What addresses of workers begin with.
inline constexpr std::string_view kWorker = "rpc:";

struct Device {
    std::string name = {};         // as --device takes it: "cpu", "vulkan0", "rpc:192.168.1.7:50052"
    std::string description = {};  // by its driver: "NVIDIA H100"
    std::string module = {};       // of ggml: "Vulkan", "RPC"; empty for the CPU
    uint64_t memory = 0;           // bytes; 0: not known
    uint64_t free = 0;             // of them
    ggml_backend_device* handle = nullptr;
    // To a worker: open while a copy of this or a backend of the device exists.
    std::shared_ptr<void> connection = {};

    bool is_cpu() const { return module.empty(); }
    bool is_remote() const { return module == "RPC"; }
};

// Bytes of a device that are free, of the `free` ones that ggml says: it says that all of a CPU's memory is.
uint64_t free_memory(ggml_backend_device* device, uint64_t free);

// Thrown by a step when a device is gone for good, as a worker is that has ended: all later steps fail.
struct LostDevice : Error {
    using Error::Error;
};

// The CPU first. Loads the modules that are found, once.
std::vector<Device> list_devices();

// Why modules that are there have no devices: "libggml-cuda.so: ...".
std::vector<std::string> module_problems();

// Devices for --device, separated by commas: names of list_devices(); "auto" for the first that is not the
// CPU, or the CPU; "rpc:HOST:PORT" for those of a worker, after which further "HOST:PORT" may follow. One
// name is one device, but for a worker with several. Throws Error(usage) that names the devices there are for
// a name that is none of theirs, for the same device twice, and as connect_worker() does.
std::vector<Device> find_devices(std::string_view names, const WorkerAccess& access = {});

}  // namespace refold
