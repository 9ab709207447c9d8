#include "engine/devices.h"

#include <ggml-backend.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <mutex>

#include "core/error.h"
#include "core/memory.h"
#include "core/text.h"
#include "engine/rpc_worker.h"
#include "io/ggml_cpu.h"
#include "io/ggml_log.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

constexpr std::array kModules = {"cuda", "hip", "metal", "sycl", "vulkan", "rpc"};

// Why a module that was loaded has no device. Empty where it has one, or lends other machines'.
std::string obstacle(ggml_backend_reg_t module, std::string_view name) {
    if (name == "rpc" || ggml_backend_reg_dev_count(module) > 0) return "";
    const std::string errors = ggml_errors();
    return fmt::format("it finds none here - is there a GPU, and its driver installed?{}",
                       errors == kNoReason ? "" : fmt::format(" ({})", errors));
}

// Loads the modules beside the program, and those beside ggml. Returns which have no devices, and why.
const std::vector<std::string>& load_modules() {
    static std::vector<std::string> problems;
    static std::once_flag once;
    std::call_once(once, [] {
        load_ggml_cpu();
        capture_ggml_log();
        const std::vector<fs::path> folders = ggml_module_folders();
        for (const char* module : kModules) {
            for (const fs::path& folder : folders) {
                const fs::path path = folder / fmt::format("libggml-{}.so", module);
                std::error_code none;
                if (!fs::exists(path, none)) continue;
                clear_ggml_errors();
                ggml_backend_reg_t loaded = ggml_backend_load(path.c_str());
                const std::string problem = loaded == nullptr ? ggml_errors() : obstacle(loaded, module);
                if (!problem.empty()) problems.push_back(fmt::format("{}: {}", path.string(), problem));
                if (loaded != nullptr) break;
            }
        }
    });
    return problems;
}

bool is_cpu(ggml_backend_dev_t device) {
    const auto type = ggml_backend_dev_type(device);
    return type == GGML_BACKEND_DEVICE_TYPE_CPU || type == GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

std::string lower_case(std::string name) {
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    return name;
}

Device describe(ggml_backend_dev_t device) {
    Device out;
    out.name = is_cpu(device) ? std::string(kCpu) : lower_case(ggml_backend_dev_name(device));
    out.description = ggml_backend_dev_description(device);
    out.handle = device;
    if (!is_cpu(device)) out.module = ggml_backend_reg_name(ggml_backend_dev_backend_reg(device));
    size_t free = 0, total = 0;
    ggml_backend_dev_memory(device, &free, &total);
    out.memory = total;
    out.free = free_memory(device, free);
    return out;
}

[[noreturn]] void unknown_device(std::string_view name, const std::vector<Device>& all) {
    std::vector<std::string> names;
    for (const Device& device : all) names.push_back(device.name);
    const std::vector<std::string> problems = module_problems();
    fail(ErrorCode::usage, "engine",
         "--device: there is no '{}' here; there are auto, {}, {} and rpc:HOST:PORT{}", name,
         join(names, ", "), kPlainCpu, problems.empty() ? "" : "; no device from " + join(problems, "; "));
}

Device find_local(std::string_view name, const std::vector<Device>& all) {
    if (name == "auto") return all.size() > 1 ? all[1] : all[0];
    if (name == kPlainCpu) {
        Device out = all.front();
        out.name = kPlainCpu;
        return out;
    }
    const auto found = std::ranges::find(all, name, &Device::name);
    if (found == all.end()) unknown_device(name, all);
    return *found;
}

}  // namespace

uint64_t free_memory(ggml_backend_device* device, uint64_t free) {
    return is_cpu(device) ? std::min<uint64_t>(free, memory_of().available) : free;
}

std::vector<Device> list_devices() {
    load_modules();
    std::vector<Device> out = {describe(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU))};
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        if (!is_cpu(device)) out.push_back(describe(device));
    }
    return out;
}

std::vector<std::string> module_problems() { return load_modules(); }

std::vector<Device> find_devices(std::string_view names, const WorkerAccess& access) {
    const std::vector<Device> all = list_devices();
    std::vector<Device> out;
    bool after_worker = false;
    for (size_t first = 0, end = 0; end != std::string_view::npos; first = end + 1) {
        end = names.find(',', first);
        const std::string name(names.substr(first, end == std::string_view::npos ? end : end - first));
        const bool worker = name.starts_with(kWorker);
        after_worker = worker || (after_worker && name.find(':') != std::string::npos);
        if (!after_worker) {
            out.push_back(find_local(name, all));
            continue;
        }
        for (Device& device : connect_worker(worker ? name.substr(kWorker.size()) : name, access))
            out.push_back(std::move(device));
    }
    for (size_t i = 0; i < out.size(); ++i) {
        for (size_t j = 0; j < i; ++j)
            if (out[i].handle == out[j].handle)
                fail(ErrorCode::usage, "engine", "--device {}: {} is there twice", names, out[i].name);
    }
    return out;
}

}  // namespace refold
