#include "linalg/blas_kernels.h"

#include <cstdlib>
#include <cstring>

namespace refold::blas {
namespace {

constexpr const char* kChoice = "OPENBLAS_CORETYPE";

// OpenBLAS's name of suitable kernels, or null for an older processor.
const char* better_kernels() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
    return nullptr;
}

}  // namespace

bool choose_kernels() {
    const bool can = openblas_get_corename != nullptr && gotoblas_dynamic_init != nullptr &&
                     gotoblas_dynamic_quit != nullptr;
    const char* better = better_kernels();
    if (!can || better == nullptr || std::getenv(kChoice) != nullptr) return false;
    if (std::strcmp(openblas_get_corename(), "Prescott") != 0) return false;
    // OpenBLAS reads the environment when it chooses.
    setenv(kChoice, better, 1);
    gotoblas_dynamic_quit();
    gotoblas_dynamic_init();
    return true;
}

}  // namespace refold::blas
