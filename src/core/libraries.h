// Libraries that are loaded while a program runs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace refold {

// The folders in which refold is installed: that of the program's folder and, where refold is a part of a
// library of someone else's (a Python extension), before it the one that this library lies in.
std::vector<std::filesystem::path> installation_prefixes();

// Where refold's own are looked for: beside the program (build tree), and in a folder of its prefix's
// libraries (installation). Where refold is a part of a library of someone else's, first beside that and in
// the folder of libraries below it.
std::vector<std::filesystem::path> library_folders();

// Loads a library, with its symbols to itself. Null, and the reason in `error`, if that fails.
void* load_library(const std::filesystem::path& path, std::string& error);
// The address of a symbol of a library; null: there is none.
void* find_symbol(void* library, const char* name);
void unload_library(void* library);

}  // namespace refold
