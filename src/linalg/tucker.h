// Tucker and CP decompositions of weight tensors. Tensors are stored with the first index contiguous:
// element (i1, i2, i3, i4) of a tensor of dims {n1, n2, n3, n4} is at i1 + n1 * (i2 + n2 * (i3 + n3 * i4)).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace refold {

struct TuckerOptions {
    std::array<int64_t, 3> ranks{};  // R1, R2, R3; clipped to the dimensions
    int max_sweeps = 100;            // at least 1
    // Stop when a sweep changes the relative error by less than this, but not before the third sweep:
    // TensorLy's rule (partial_tucker, n_iter_max 100, tol 1e-4). 0: all sweeps.
    double tolerance = 1e-4;
    // Compute TuckerResult::hosvd_error. Only this needs the first mode's HOSVD vectors: the first sweep
    // replaces them before they are used.
    bool hosvd_error = false;
    std::function<void(int sweep, double relative_error)> on_sweep = {};  // sweeps count from 1
};

struct TuckerResult {
    std::array<int64_t, 3> ranks{};
    std::vector<float> core;                    // [R1, R2, R3, n4], first index contiguous
    std::array<std::vector<float>, 3> factors;  // factor m: R_m rows of n_m contiguous elements, orthonormal
    double hosvd_error = 0;                     // relative error of the HOSVD start, if requested
    double relative_error = 0;                  // Frobenius norm of the difference / that of the tensor
    int sweeps = 0;
};

// Tucker decomposition of modes 1 to 3; the factor of mode 4 is the identity. It gives TensorLLM's factor
// matrices that all heads share (equations 13 and 14), by higher-order orthogonal iteration (HOOI) from an
// HOSVD start. A mode whose rank equals its dimension keeps the identity as its factor, so full ranks
// reproduce the tensor bit for bit. Throws Error(input) when the tensor is not finite or has another size,
// Error(usage) for ranks or sweeps below 1.
TuckerResult partial_tucker(std::span<const float> tensor, const std::array<int64_t, 4>& dims,
                            const TuckerOptions& options);

// The approximated tensor: core x1 U1 x2 U2 x3 U3.
std::vector<float> reconstruct(const TuckerResult& result, const std::array<int64_t, 4>& dims);

struct CpOptions {
    int64_t rank = 1;
    int max_sweeps = 100;
    double tolerance = 1e-4;  // as above, on the relative error
    uint64_t seed = 0;
};

// sum over r of weights[r] * a[r] (outer) b[r] (outer) c[r], every vector of norm 1.
struct CpResult {
    int64_t rank = 0;
    std::vector<double> weights;
    std::array<std::vector<float>, 3> factors;  // rank rows of n_m contiguous elements
    double relative_error = 0;
    int sweeps = 0;
};

// CANDECOMP/PARAFAC by alternating least squares. Starts from the leading singular vectors of each unfolding,
// with seeded random vectors where the rank exceeds a dimension. Throws as partial_tucker.
CpResult cp_decomposition(std::span<const float> tensor, const std::array<int64_t, 3>& dims,
                          const CpOptions& options);

std::vector<float> reconstruct(const CpResult& result, const std::array<int64_t, 3>& dims);

}  // namespace refold
