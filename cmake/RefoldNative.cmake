# REFOLD_NATIVE: which of Highway's targets are left out, so that kernels are compiled for this machine's CPU alone.
include_guard(GLOBAL)

if(NOT REFOLD_NATIVE OR CMAKE_CROSSCOMPILING OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    return()
endif()
set(source "${PROJECT_BINARY_DIR}/native_targets.cpp")
file(WRITE "${source}" [[
#include <hwy/highway.h>
#include <cstdio>
int main() {
    const struct { long long target; const char* name; } all[] = {
        {HWY_AVX3_DL, "HWY_AVX3_DL"}, {HWY_AVX3, "HWY_AVX3"}, {HWY_AVX2, "HWY_AVX2"}, {HWY_SSE4, "HWY_SSE4"}, {HWY_SSSE3, "HWY_SSSE3"}};
    bool best = true;  // the first that the CPU has
    const char* separator = "";
    for (const auto& [target, name] : all) {
        if (best && (hwy::SupportedTargets() & target) != 0) {
            best = false;
            continue;
        }
        std::printf("%s%s", separator, name);
        separator = "|";
    }
}
]])
# Not cached: the folder may have come from another machine.
unset(REFOLD_NATIVE_RUN CACHE)
unset(REFOLD_NATIVE_COMPILED CACHE)
try_run(REFOLD_NATIVE_RUN REFOLD_NATIVE_COMPILED "${PROJECT_BINARY_DIR}" "${source}"
    LINK_LIBRARIES hwy COMPILE_DEFINITIONS -DHWY_WANT_AVX3_DL CXX_STANDARD 20 RUN_OUTPUT_VARIABLE others)
if(NOT REFOLD_NATIVE_COMPILED OR NOT REFOLD_NATIVE_RUN EQUAL 0)
    message(WARNING "Highway does not tell what this CPU has: kernels are compiled for all CPUs")
    return()
endif()
message(STATUS "Kernels for this CPU alone, not for ${others} (REFOLD_NATIVE)")
add_compile_definitions(HWY_WANT_AVX3_DL "HWY_DISABLED_TARGETS=(${others})")
