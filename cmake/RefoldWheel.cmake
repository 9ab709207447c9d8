# `pip install .`: finds what scripts/setup provides, which it runs for that. A wheel has no torch engine.
include_guard(GLOBAL)

# For the machine that it is built on, unless -C cmake.define.REFOLD_NATIVE=OFF asks for one that others can use.
if(NOT DEFINED REFOLD_NATIVE)
    set(REFOLD_NATIVE ON)
endif()
set(portable "")
if(NOT REFOLD_NATIVE)
    set(portable --portable)
endif()

# The compiler that Python was built with is in CC and CXX, and would get a llama.cpp of its own.
execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env --unset=CC --unset=CXX REFOLD_TRAIN=OFF "${PROJECT_SOURCE_DIR}/scripts/setup" ${portable} --print-prefix
    OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
list(APPEND CMAKE_PREFIX_PATH ${prefix})
