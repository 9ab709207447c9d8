// A device that computes large operations in place of the CPU, while it is installed: those of blas.h, and
// sums of products. All numbers are given and returned in this machine's memory, in the same types, and sums
// are of the same precision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "linalg/blas.h"

namespace refold::blas {

template <typename Real>
struct Product {
    Op op_a, op_b;
    Shape shape;
    Steps steps;
    const Real *a, *b;
    Real* c;
    Real beta, alpha;
};

// Sums over rows (x, y) in the device's memory.
class DeviceSums {
public:
    virtual ~DeviceSums() = default;
    // Adds sums of x x^T [inputs x inputs] and y x^T [outputs x inputs] over rows x [rows x inputs] and y
    // [rows x outputs], made in float32, to those in float64. Returns false when one is not finite.
    virtual bool add(int64_t rows, const float* x, const float* y) = 0;
    virtual void read(double* gram, double* cross) const = 0;
};

// Functions of the same names as in blas.h do the same. Safe to call from several threads.
class Device {
public:
    virtual ~Device() = default;

    virtual void multiply(const Product<float>& product) = 0;
    virtual void multiply(const Product<double>& product) = 0;
    virtual void multiply_symmetric(int64_t n, int64_t r, const float* g, const float* b, float* c) = 0;
    virtual void multiply_symmetric(int64_t n, int64_t r, const double* g, const double* b, double* c) = 0;
    virtual void gram(const float* x, int64_t a, int64_t n, int64_t c, float* g) = 0;
    virtual void gram(const float* x, int64_t a, int64_t n, int64_t c, double* g) = 0;
    virtual void mixed_gram(const float* x, int64_t a, int64_t n, int64_t c, double* g) = 0;
    virtual Eigen<float> leading_eigenvectors(const float* matrix, int64_t n, int64_t r) = 0;
    virtual Eigen<double> leading_eigenvectors(const double* matrix, int64_t n, int64_t r) = 0;
    virtual bool orthonormalize(int64_t n, int64_t r, float* x) = 0;
    virtual bool solve_right(int64_t n, int64_t r, const float* h, float* x) = 0;
    virtual bool cholesky(int64_t n, double* g) = 0;
    virtual bool solve_shifted(int64_t n, int64_t r, const double* g, double shift, double* b) = 0;
    virtual void householder(int64_t n, int64_t r, float* x) = 0;
    virtual void householder(int64_t n, int64_t r, double* x) = 0;

    virtual std::unique_ptr<DeviceSums> sums(int64_t inputs, int64_t outputs) = 0;

    // See Kept.
    virtual void keep(const void* data, size_t bytes) = 0;
    virtual void changed(const void* data, size_t bytes) = 0;
    virtual void release(const void* data) = 0;
    virtual bool is_kept(const void* data) = 0;
};

// When an operation is worth its way to the device and back: that many multiplications and additions, and so
// many for each byte that moves. With a CPU of 1 TFLOPS and a link of 20 GB/s, 50 are even.
struct Worth {
    double least = 2e8;
    double per_byte = 50;
};

// Installs a device for all later calls, or with null removes it. Call it with null before the program ends,
// because the device needs libraries that static destructors may unload first.
void set_device(std::unique_ptr<Device> device, const Worth& worth = {});
// The device, where one is installed.
Device* device();
// The device, where so many multiplications and additions with so many bytes of operands and results are
// worth it; else null.
Device* device_for(double operations, double bytes);

// Whatever is read several times: while it lives, the device may keep a copy of these numbers, or of parts of
// them, which must not change but for changed().
class Kept {
public:
    template <typename Real>
    explicit Kept(std::span<const Real> values) : Kept(values.data(), values.size_bytes()) {}
    ~Kept();
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;

    // These of the numbers have changed.
    template <typename Real>
    void changed(std::span<const Real> values) const {
        changed(values.data(), values.size_bytes());
    }

private:
    Kept(const void* data, size_t bytes);
    void changed(const void* data, size_t bytes) const;

    const void* data_ = nullptr;  // null without a device
};

// What moves for an operand of so many numbers: nothing when the device keeps it.
template <typename Real>
double moved(const Real* data, int64_t count) {
    Device* const on = device();
    return on != nullptr && on->is_kept(data) ? 0 : static_cast<double>(count) * sizeof(Real);
}

}  // namespace refold::blas
