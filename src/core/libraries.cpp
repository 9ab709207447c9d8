#include "core/libraries.h"

#include <dlfcn.h>

#include <string_view>

namespace refold {

namespace fs = std::filesystem;

std::vector<fs::path> library_folders() {
    std::error_code none;
    std::vector<fs::path> folders = {fs::read_symlink("/proc/self/exe", none).parent_path()};
    folders.push_back((folders.front() / ".." / REFOLD_LIBRARIES).lexically_normal());
    // As a part of a library (a Python extension) this is not the program.
    Dl_info self;
    static const char here = 0;
    if (dladdr(&here, &self) != 0 && std::string_view(self.dli_fname).ends_with(".so")) {
        const fs::path folder = fs::absolute(self.dli_fname, none).parent_path();
        folders.insert(folders.begin(), {folder, folder / REFOLD_LIBRARIES});
    }
    return folders;
}

void* load_library(const fs::path& path, std::string& error) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) error = dlerror();
    return library;
}

void* find_symbol(void* library, const char* name) { return dlsym(library, name); }

void unload_library(void* library) { dlclose(library); }

}  // namespace refold
