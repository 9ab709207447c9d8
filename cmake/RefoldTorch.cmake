# Finds libtorch for the second engine. Sets REFOLD_HAVE_TORCH and makes the target refold_libtorch.
include_guard(GLOBAL)

set(REFOLD_TRAIN AUTO CACHE STRING "Build the torch engine (gradients, training): AUTO (when libtorch is found), ON or OFF")
set_property(CACHE REFOLD_TRAIN PROPERTY STRINGS AUTO ON OFF)
set(REFOLD_TORCH_PACKAGE "" CACHE PATH "The folder 'torch' of an installed Python package, whose libtorch is used instead of one that CMake finds")

# The Python package as it is: its own CMake files ask for a CUDA compiler, which nothing here needs.
function(refold_torch_of_package folder)
    if(NOT EXISTS "${folder}/lib/libtorch_cpu.so" OR NOT EXISTS "${folder}/include/ATen/ATen.h")
        message(FATAL_ERROR "REFOLD_TORCH_PACKAGE: '${folder}' is no folder of Python's torch (lib/libtorch_cpu.so and include/ATen/ATen.h are not there)")
    endif()
    add_library(refold_libtorch INTERFACE)
    target_include_directories(refold_libtorch SYSTEM INTERFACE "${folder}/include" "${folder}/include/torch/csrc/api/include")
    target_compile_definitions(refold_libtorch INTERFACE USE_DISTRIBUTED)
    foreach(library torch torch_cpu c10)
        target_link_libraries(refold_libtorch INTERFACE "${folder}/lib/lib${library}.so")
    endforeach()
    if(EXISTS "${folder}/lib/libtorch_cuda.so")
        # Nothing refers to libtorch_cuda: it registers itself when it is loaded.
        target_link_libraries(refold_libtorch INTERFACE -Wl,--push-state,--no-as-needed
            "${folder}/lib/libtorch_cuda.so" "${folder}/lib/libc10_cuda.so" -Wl,--pop-state)
        # Headers of CUDA and NCCL lie in packages beside it.
        file(GLOB headers LIST_DIRECTORIES true "${folder}/../nvidia/*/include")
        target_include_directories(refold_libtorch SYSTEM INTERFACE ${headers})
        target_compile_definitions(refold_libtorch INTERFACE USE_C10D_NCCL)
    endif()
endfunction()

set(REFOLD_HAVE_TORCH OFF)
if(REFOLD_TRAIN AND REFOLD_TORCH_PACKAGE)
    set(REFOLD_HAVE_TORCH ON)
    refold_torch_of_package("${REFOLD_TORCH_PACKAGE}")
else()
    if(REFOLD_TRAIN STREQUAL "AUTO")
        find_package(Torch QUIET)
    elseif(REFOLD_TRAIN)
        find_package(Torch REQUIRED)
    else()
        set(Torch_FOUND OFF)
    endif()
    if(Torch_FOUND)
        set(REFOLD_HAVE_TORCH ON)
        add_library(refold_libtorch INTERFACE)
        # Imported, so its headers are system headers; its C++14 does not reach who links it.
        target_link_libraries(refold_libtorch INTERFACE ${TORCH_LIBRARIES})
        # Of another gloo than the one that libtorch was built with they would be wrong.
        if(EXISTS "${TORCH_INSTALL_PREFIX}/include/gloo/context.h")
            target_compile_definitions(refold_libtorch INTERFACE REFOLD_GLOO_HEADERS)
        endif()
    endif()
endif()
message(STATUS "Torch engine: ${REFOLD_HAVE_TORCH} (REFOLD_TRAIN=${REFOLD_TRAIN})")
