# The options of the build. What only developers of refold need is on when refold is the top-level project and
# off when another project includes it.
include_guard(GLOBAL)

option(REFOLD_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(REFOLD_BUILD_BENCH "Build the microbenchmarks" ${PROJECT_IS_TOP_LEVEL})
# Off here and on in the presets: a new compiler's new warning must not break a user's build.
option(REFOLD_WERROR "Treat warnings as errors" OFF)
option(REFOLD_PYTHON "Build the Python extension, which needs nanobind (pip install . sets it)" OFF)
option(REFOLD_NATIVE "Compile kernels for this machine's CPU alone: in a fraction of the time, for no other machine" OFF)
option(REFOLD_SANITIZE "Build everything with the address and undefined-behavior sanitizers" OFF)
option(REFOLD_COVERAGE "Build the programs of fuzz/ for libFuzzer, which needs Clang and REFOLD_SANITIZE" OFF)

# Sums of the same order are the same numbers only if no copy of a function, for no CPU, contracts a product and a sum. For
# everything: GCC takes this option from a precompiled header, whatever a file's own options say.
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off>)

if(REFOLD_SANITIZE)
    set(refold_sanitize_flags -fsanitize=address,undefined -fno-sanitize-recover=undefined)
    if(REFOLD_COVERAGE)
        list(APPEND refold_sanitize_flags -fsanitize=fuzzer-no-link)
    endif()
    add_compile_options(${refold_sanitize_flags} -fno-omit-frame-pointer)
    add_compile_definitions(_GLIBCXX_ASSERTIONS)
    add_link_options(${refold_sanitize_flags})
endif()

# ARM64: kernels use NEON with products of bytes (and Highway asks for cryptography), which are chosen here and not when the program starts. Highway's SVE
# is left out: vectors of our kernels have sizes that the compiler knows, and GCC 12 crashes on it.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(REFOLD_ARM_ARCH "armv8.2-a+crypto+dotprod+fp16" CACHE STRING "The least ARM architecture (-march) that the programs run on")
    add_compile_options("-march=${REFOLD_ARM_ARCH}")
    add_compile_definitions("HWY_DISABLED_TARGETS=(HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128)")
endif()

# ccache, where it is installed and nothing else was asked for, keeps objects across clones: paths below the source folder
# count as relative to it. Precompiled headers need both settings.
find_program(REFOLD_CCACHE ccache)
mark_as_advanced(REFOLD_CCACHE)
if(PROJECT_IS_TOP_LEVEL AND REFOLD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
        "CCACHE_SLOPPINESS=pch_defines,time_macros" "${REFOLD_CCACHE}")
    if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
        add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
    else()
        add_compile_options(-fpch-preprocess)
    endif()
endif()

# Files that cannot be compiled in groups (CMAKE_UNITY_BUILD), as they have the same names for their own things.
function(refold_compiled_alone)
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# Files with vector kernels include themselves for every kind of processor. The compiler's intrinsics want constants that
# it sees only when it optimizes.
function(refold_vector_kernels)
    refold_compiled_alone(${ARGN})
    if(REFOLD_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Debug")
        set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -O1 SKIP_PRECOMPILE_HEADERS ON)
    endif()
endfunction()
