// The instructions that refold's own kernels use: chosen when the program starts, from what the CPU has.
#pragma once

#include <string>
#include <vector>

namespace refold {

// Levels that this CPU can run, best first: avx512_vnni, avx512, avx2, sse4, ssse3; neon.
std::vector<std::string> cpu_levels();
// The one in use: the best, unless the environment variable REFOLD_CPU or set_cpu_level() names a lower one.
// Kernels without a form for it, such as those with products of bytes, leave the work to ggml's, of which
// REFOLD_CPU chooses the variant too (io/ggml_cpu.h).
std::string cpu_level();
// For tests and comparisons. Throws Error(usage) with the possible ones if this CPU cannot run it.
void set_cpu_level(const std::string& name);
// Takes REFOLD_CPU into account, once; engines call it. Throws as set_cpu_level().
void choose_cpu_level();

}  // namespace refold
