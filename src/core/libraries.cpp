#include "core/libraries.h"

#include <dlfcn.h>

#include <string_view>

namespace refold {

namespace fs = std::filesystem;

namespace {

fs::path program_folder() {
    std::error_code none;
    return fs::read_symlink("/proc/self/exe", none).parent_path();
}

// Empty in a program.
fs::path extension_folder() {
    std::error_code none;
    Dl_info self;
    static const char here = 0;
    if (dladdr(&here, &self) == 0 || !std::string_view(self.dli_fname).ends_with(".so")) return {};
    return fs::absolute(self.dli_fname, none).parent_path();
}

}  // namespace

std::vector<fs::path> installation_prefixes() {
    std::vector<fs::path> prefixes;
    if (const fs::path folder = extension_folder(); !folder.empty()) prefixes.push_back(folder);
    prefixes.push_back(program_folder().parent_path());
    return prefixes;
}

std::vector<fs::path> library_folders() {
    std::vector<fs::path> folders;
    if (const fs::path folder = extension_folder(); !folder.empty())
        folders = {folder, folder / REFOLD_LIBRARIES};
    folders.push_back(program_folder());
    folders.push_back(program_folder().parent_path() / REFOLD_LIBRARIES);
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
