#pragma once

namespace refold::blas {

// OpenBLAS takes kernels of SSE3 ("Prescott") for processors that are newer than itself and is three to five
// times slower than it need be: gives the whole process those that fit, unless OPENBLAS_CORETYPE names some.
// No product may be under way. Whether they are others now.
bool choose_kernels();

}  // namespace refold::blas
