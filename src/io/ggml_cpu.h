// ggml's CPU backend is a library of its own, with a variant for every generation of CPUs. This loads the one
// for this CPU, and defines the functions of <ggml-cpu.h> that refold calls, which pass calls on to it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace refold {

// Loads and registers the backend, once; the functions below and those of <ggml-cpu.h> do it themselves, but
// libllama needs it before it loads weights. With the environment variable REFOLD_CPU (engine/cpu_level.h)
// the best variant that needs no more than that level. Throws Error(unsupported) if there is none for this
// CPU.
void load_ggml_cpu();

// Where ggml's modules are looked for: what the environment variable REFOLD_GGML_MODULES names, beside the
// program and its libraries, and the folder of the build.
std::vector<std::filesystem::path> ggml_module_folders();

// The variant that was loaded, such as "zen4"; empty: there is only one.
std::string ggml_cpu_variant();

// The address of one of its functions; null: it has no such function.
void* ggml_cpu_function(const char* name);

}  // namespace refold
