# Finds libtorch for the second engine. Sets REFOLD_HAVE_TORCH and makes the target refold_libtorch.
include_guard(GLOBAL)

set(REFOLD_TRAIN AUTO CACHE STRING "Build the torch engine (gradients, training): AUTO (when libtorch is found), ON or OFF")
set_property(CACHE REFOLD_TRAIN PROPERTY STRINGS AUTO ON OFF)

set(REFOLD_HAVE_TORCH OFF)
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
endif()
message(STATUS "Torch engine: ${REFOLD_HAVE_TORCH} (REFOLD_TRAIN=${REFOLD_TRAIN})")
