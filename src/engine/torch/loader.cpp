#include <dlfcn.h>

#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "engine/torch/plugin.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

// Beside the program (build tree), among the libraries of its prefix (installation), or where the system
// looks.
void* open_library() {
    std::error_code none;
    const fs::path folder = fs::read_symlink("/proc/self/exe", none).parent_path();
    const fs::path installed = (folder / ".." / REFOLD_LIBDIR).lexically_normal();
    fs::path path = torch_plugin::kLibrary;
    for (const fs::path& place : {folder, installed}) {
        if (fs::exists(place / torch_plugin::kLibrary, none)) {
            path = place / torch_plugin::kLibrary;
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
    void* found = dlsym(library, name);
    if (found == nullptr)
        fail(ErrorCode::unsupported, "torch engine", "{} has no '{}'", torch_plugin::kLibrary, name);
    return found;
}

// Loaded once and never unloaded: libtorch keeps threads.
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

std::unique_ptr<Backend> make_torch_backend(const Model& model, const EngineOptions& options) {
    static auto* const make =
        reinterpret_cast<torch_plugin::Make*>(torch_plugin::find(torch_plugin::kMakeSymbol));
    return std::unique_ptr<Backend>(make(model, options));
}

}  // namespace refold
