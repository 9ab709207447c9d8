#include "core/libraries.h"

#include <dlfcn.h>

namespace refold {

namespace fs = std::filesystem;

std::vector<fs::path> library_folders() {
    std::error_code none;
    const fs::path folder = fs::read_symlink("/proc/self/exe", none).parent_path();
    return {folder, (folder / ".." / REFOLD_LIBRARIES).lexically_normal()};
}

void* load_library(const fs::path& path, std::string& error) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) error = dlerror();
    return library;
}

void* find_symbol(void* library, const char* name) { return dlsym(library, name); }

void unload_library(void* library) { dlclose(library); }

}  // namespace refold
