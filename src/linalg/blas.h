// The operations of BLAS and LAPACK that the decompositions need. Matrices are column major. Large ones run
// on a device where one is installed (device.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace refold::blas {

// Sum of squares in float64. Throws Error(input) naming `what` when an element is not finite.
double energy(std::span<const float> values, const char* what);

// Throws Error(input) naming `what` when `size` is not the product of `dims` or is too large for BLAS.
void check_size(std::span<const int64_t> dims, size_t size, const char* what);

// c (m x n) = alpha op(a) (m x k) op(b) (k x n) + beta c.
struct Shape {
    int64_t m, n, k;
};
enum class Op { plain, transposed };
void multiply(Op op_a, Op op_b, Shape shape, const float* a, const float* b, float* c, float beta = 0,
              float alpha = 1);
void multiply(Op op_a, Op op_b, Shape shape, const double* a, const double* b, double* c, double beta = 0,
              double alpha = 1);
// c (m x n) = op(a) op(b) of parts of larger matrices: the columns of each lie `stride` elements apart. On
// the CPU alone, in a tile of share_out() (blas_threads.h).
struct Part {
    const float* data;
    int64_t stride;
};
void multiply_parts(Op op_a, Op op_b, Shape shape, Part a, Part b, float* c);
// `count` products as multiply() makes them, whose operands lie one after the other: a step is a whole
// matrix, or 0 for one that all have in common. A step of c of 0 sums them: c = sum of op(a) op(b).
struct Steps {
    int64_t count = 1, a = 0, b = 0, c = 0;
};
void multiply_each(Op op_a, Op op_b, Shape shape, const Steps& steps, const float* a, const float* b,
                   float* c);
// c (n x r) = g (n x n, symmetric, lower triangle) b (n x r).
void multiply_symmetric(int64_t n, int64_t r, const float* g, const float* b, float* c);
void multiply_symmetric(int64_t n, int64_t r, const double* g, const double* b, double* c);

// Lower triangle of the Gram matrix over index j of a tensor x[i + a * (j + n * k)], i < a, j < n, k < c: the
// sum over i and k of x[i, j, k] x[i, j', k]. The float64 form converts one panel of `x` at a time.
template <typename Real>
std::vector<Real> gram(const float* x, int64_t a, int64_t n, int64_t c);
// The same with float32 sums over i and float64 sums over k, in half the time.
std::vector<double> mixed_gram(const float* x, int64_t a, int64_t n, int64_t c);

template <typename Real>
struct Eigen {
    std::vector<double> values;  // all n, descending
    std::vector<Real> vectors;   // n x r, of the r largest values
};

// All eigenvalues and the r leading eigenvectors of a symmetric n x n matrix, given by its lower triangle.
template <typename Real>
Eigen<Real> leading_eigenvectors(std::vector<Real> matrix, int64_t n, int64_t r);

// When columns are nearly dependent, the last pivots are rounding errors: below this.
inline constexpr float kLeastPivot = 0.03F;
// Makes the columns of x (n x r) orthonormal by the Cholesky factor of their Gram matrix. Returns false and
// leaves x undefined when the columns are nearly dependent.
bool orthonormalize(int64_t n, int64_t r, float* x);
// x (n x r) = x h^-1. h (r x r) is symmetric, given by its lower triangle, and is overwritten. Returns false
// when h is not positive definite.
bool solve_right(int64_t n, int64_t r, float* h, float* x);
// Replaces the lower triangle of the symmetric g (n x n) by its Cholesky factor. Returns false when g is not
// positive definite.
bool cholesky(int64_t n, double* g);
// b (n x r) = g^-1 b. g (n x n) is symmetric, given by its lower triangle, and is overwritten. Returns false
// when g is not positive definite.
bool solve_positive(int64_t n, int64_t r, double* g, double* b);
// b = (g + shift)^-1 b, the shift on the diagonal. g stays as it is.
bool solve_shifted(int64_t n, int64_t r, const double* g, double shift, double* b);
// Replaces the columns of x (n x r, n >= r) by an orthonormal basis of their span (Householder QR).
void householder(int64_t n, int64_t r, double* x);
void householder(int64_t n, int64_t r, float* x);

// Standard normal random numbers, the same for a seed on every platform.
class Normal {
public:
    explicit Normal(uint64_t seed) : state_(seed) {}
    double operator()();

private:
    double uniform();
    uint64_t state_;
};

}  // namespace refold::blas
