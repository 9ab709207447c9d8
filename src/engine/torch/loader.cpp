#include <dlfcn.h>

#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "engine/checked_options.h"
#include "engine/engines.h"
#include "engine/torch/plugin.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

// Next to the program (build tree), in the library folder of its prefix (installation), or on the system's
// search path.
void* open_library() {
    std::error_code none;
    const fs::path folder = fs::read_symlink("/proc/self/exe", none).parent_path();
    const fs::path installed = (folder / ".." / REFOLD_LIBDIR).lexically_normal();
    fs::path path = torch_plugin::kLibrary;
    for (const fs::path& candidate : {folder, installed}) {
        if (fs::exists(candidate / torch_plugin::kLibrary, none)) {
            path = candidate / torch_plugin::kLibrary;
            break;
        }
    }
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        fail(ErrorCode::unsupported, "torch engine",
             "cannot load the engine: {} - {} belongs into {} or {}, and libtorch must be installed",
             dlerror(), torch_plugin::kLibrary, folder.string(), installed.string());
    }
    return library;
}

void* symbol(void* library, const char* name) {
    void* address = dlsym(library, name);
    if (address == nullptr)
        fail(ErrorCode::unsupported, "torch engine", "{} has no '{}'", torch_plugin::kLibrary, name);
    return address;
}

// Loads the library once and never unloads it, because libtorch's threads keep running.
void* load() {
    void* library = open_library();
    const char* version =
        reinterpret_cast<torch_plugin::Version*>(symbol(library, torch_plugin::kVersionSymbol))();
    if (std::strcmp(version, REFOLD_VERSION) != 0) {
        fail(ErrorCode::unsupported, "torch engine", "{} is of version {}, expected {} - install both again",
             torch_plugin::kLibrary, version, REFOLD_VERSION);
    }
    return library;
}

}  // namespace

void* torch_plugin::find(const char* name) {
    static void* const library = load();
    return symbol(library, name);
}

bool has_torch_engine() { return true; }

std::unique_ptr<Engine> make_torch_engine(const Model& model, const EngineOptions& options) {
    static auto* const make =
        reinterpret_cast<torch_plugin::Make*>(torch_plugin::find(torch_plugin::kMakeSymbol));
    return std::unique_ptr<Engine>(make(model, options, capabilities_of(model, options)));
}

}  // namespace refold
