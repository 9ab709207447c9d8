#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/libraries.h"
#include "engine/checked_options.h"
#include "engine/engines.h"
#include "engine/torch/plugin.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

// In refold's folders, or on the system's search path.
void* open_library() {
    const auto folders = library_folders();
    fs::path path = torch_plugin::kLibrary;
    std::error_code none;
    for (const fs::path& folder : folders) {
        if (fs::exists(folder / torch_plugin::kLibrary, none)) {
            path = folder / torch_plugin::kLibrary;
            break;
        }
    }
    std::string error;
    void* library = load_library(path, error);
    if (library == nullptr) {
        fail(ErrorCode::unsupported, "torch engine",
             "cannot load the engine: {} - {} belongs into {} or {}, and libtorch must be installed", error,
             torch_plugin::kLibrary, folders.front().string(), folders.back().string());
    }
    return library;
}

void* symbol(void* library, const char* name) {
    void* address = find_symbol(library, name);
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
