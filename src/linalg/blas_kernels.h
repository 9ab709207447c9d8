#pragma once

// OpenBLAS's own functions, null in another BLAS. gotoblas_dynamic_init() after quit chooses kernels again.
extern "C" {
char* openblas_get_corename(void) __attribute__((weak));
void gotoblas_dynamic_init(void) __attribute__((weak));
void gotoblas_dynamic_quit(void) __attribute__((weak));
}

namespace refold::blas {

// On processors newer than itself OpenBLAS falls back to SSE3 kernels ("Prescott"), which are three to five
// times slower. Switches the whole process to suitable kernels, unless OPENBLAS_CORETYPE is set. Must not be
// called while a product runs. Returns whether the kernels have changed.
bool choose_kernels();

}  // namespace refold::blas
