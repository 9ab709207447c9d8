# Finds BLAS and LAPACK. Debian's default OpenBLAS has threads of its own, which spin against the OpenMP threads that libtorch
# uses in between: training on two cores was slower than on one. Its OpenMP build is run with where it is installed.
include_guard(GLOBAL)

find_package(BLAS REQUIRED)
find_package(LAPACK REQUIRED)

find_path(REFOLD_OPENBLAS_OPENMP NAMES libopenblas.so.0 NO_DEFAULT_PATH
    PATHS "/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp" DOC "Folder of an OpenBLAS with OpenMP threads")
if(REFOLD_OPENBLAS_OPENMP)
    list(APPEND CMAKE_BUILD_RPATH "${REFOLD_OPENBLAS_OPENMP}")
    list(APPEND CMAKE_INSTALL_RPATH "${REFOLD_OPENBLAS_OPENMP}")
endif()
message(STATUS "OpenBLAS with OpenMP threads: ${REFOLD_OPENBLAS_OPENMP}")
