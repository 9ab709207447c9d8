#pragma once

// OpenBLAS's own; null in another BLAS. A choice of kernels is made again between quit and init.
extern "C" {
char* openblas_get_corename(void) __attribute__((weak));
void gotoblas_dynamic_init(void) __attribute__((weak));
void gotoblas_dynamic_quit(void) __attribute__((weak));
}

namespace refold::blas {

// OpenBLAS takes kernels of SSE3 ("Prescott") for processors that are newer than itself and is three to five
// times slower than it need be: gives the whole process those that fit, unless OPENBLAS_CORETYPE names some.
// No product may be under way. Whether they are others now.
bool choose_kernels();

}  // namespace refold::blas
