#include "engine/torch/linalg.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "engine/torch/device.h"
#include "engine/torch/translated.h"

namespace refold {
namespace {

using blas::Op;
using blas::Product;

template <typename Real>
constexpr at::ScalarType kType = c10::CppTypeToScalarType<Real>::value;

// Body without gradients, and with refold's errors.
template <typename Body>
auto computed(Body&& body) {
    return translated([&] {
        const c10::InferenceMode without_gradients;
        return body();
    });
}

template <typename Real>
at::Tensor here(const Real* data, at::IntArrayRef shape) {
    return at::from_blob(const_cast<Real*>(data), shape, kType<Real>);
}

template <typename Real>
void read(const at::Tensor& x, Real* to) {
    here(to, x.sizes()).copy_(x);
}

// Copies of what blas::Kept keeps, each made when it is first read.
class KeptCopies {
public:
    void keep(const void* data, size_t bytes) {
        const std::lock_guard lock(mutex_);
        Copy& copy = copies_[address(data)];
        copy.bytes = std::max(copy.bytes, bytes);
        ++copy.users;
    }
    void release(const void* data) {
        const std::lock_guard lock(mutex_);
        const auto found = copies_.find(address(data));
        if (--found->second.users == 0) copies_.erase(found);
    }
    void changed(const void* data, size_t bytes) {
        const std::lock_guard lock(mutex_);
        const auto [base, copy] = find(data);
        if (copy == nullptr || !copy->values.defined()) return;
        const auto first = static_cast<int64_t>((address(data) - base) / copy->values.itemsize()),
                   count = static_cast<int64_t>(bytes / copy->values.itemsize());
        copy->values.narrow(0, first, count)
            .copy_(at::from_blob(const_cast<void*>(data), {count}, copy->values.scalar_type()));
    }
    bool has(const void* data) {
        const std::lock_guard lock(mutex_);
        return find(data).second != nullptr;
    }
    // A view of the copy; undefined for numbers that are not kept.
    template <typename Real>
    at::Tensor get(const Real* data, at::IntArrayRef shape, at::Device device) {
        const std::lock_guard lock(mutex_);
        const auto [base, copy] = find(data);
        if (copy == nullptr) return {};
        if (!copy->values.defined()) {
            const auto all = static_cast<int64_t>(copy->bytes / sizeof(Real));
            copy->values = here(reinterpret_cast<const Real*>(base), {all}).to(device);
        }
        const auto first = static_cast<int64_t>((address(data) - base) / sizeof(Real));
        return copy->values.narrow(0, first, c10::multiply_integers(shape)).view(shape);
    }

private:
    struct Copy {
        size_t bytes = 0;
        int users = 0;
        at::Tensor values;
    };
    static uintptr_t address(const void* data) { return reinterpret_cast<uintptr_t>(data); }
    std::pair<uintptr_t, Copy*> find(const void* data) {
        auto after = copies_.upper_bound(address(data));
        if (after == copies_.begin()) return {};
        auto& [base, copy] = *--after;
        return {base, address(data) < base + copy.bytes ? &copy : nullptr};
    }

    std::mutex mutex_;
    std::map<uintptr_t, Copy> copies_;
};

class TorchSums : public blas::DeviceSums {
public:
    TorchSums(int64_t inputs, int64_t outputs, at::Device device) {
        const auto wide = at::TensorOptions(at::kDouble).device(device);
        gram_ = at::zeros({inputs, inputs}, wide);
        if (outputs > 0) cross_ = at::zeros({outputs, inputs}, wide);
    }

    bool add(int64_t rows, const float* x, const float* y) override {
        return computed([&] {
            const at::Tensor in = here(x, {rows, gram_.size(0)}).to(gram_.device());
            gram_.add_(at::mm(in.t(), in));
            if (!cross_.defined()) return is_finite(gram_);
            const at::Tensor out = here(y, {rows, cross_.size(0)}).to(gram_.device());
            cross_.add_(at::mm(out.t(), in));
            return is_finite(gram_) && is_finite(cross_);
        });
    }

    void read(double* gram, double* cross) const override {
        computed([&] {
            refold::read(gram_, gram);
            if (cross_.defined()) refold::read(cross_, cross);
        });
    }

private:
    // Without a copy of the sums: what is not finite is the only thing that times 0 is not 0.
    static bool is_finite(const at::Tensor& sums) { return (sums.sum() * 0.0).item<double>() == 0; }

    at::Tensor gram_, cross_;
};

// A column-major [m x n] matrix is a row-major tensor [n, m].
class TorchLinalg : public blas::Device {
public:
    explicit TorchLinalg(at::Device device) : device_(device) {}

    void multiply(const Product<float>& product) override { product_of(product); }
    void multiply(const Product<double>& product) override { product_of(product); }
    void multiply_symmetric(int64_t n, int64_t r, const float* g, const float* b, float* c) override {
        symmetric_product(n, r, g, b, c);
    }
    void multiply_symmetric(int64_t n, int64_t r, const double* g, const double* b, double* c) override {
        symmetric_product(n, r, g, b, c);
    }

    void gram(const float* x, int64_t a, int64_t n, int64_t c, float* g) override {
        computed([&] {
            const at::Tensor rows = rows_of(there(x, {c, n, a}));
            read(at::mm(rows, rows.t()), g);
        });
    }
    void gram(const float* x, int64_t a, int64_t n, int64_t c, double* g) override {
        computed([&] {
            const at::Tensor rows = rows_of(there(x, {c, n, a}));
            const at::Tensor sum = at::zeros({n, n}, rows.options().dtype(at::kDouble));
            for (const at::Tensor& some : rows.split(kPanel / n + 1, 1)) {
                const at::Tensor wide = some.to(at::kDouble);
                sum.addmm_(wide, wide.t());
            }
            read(sum, g);
        });
    }
    void mixed_gram(const float* x, int64_t a, int64_t n, int64_t c, double* g) override {
        computed([&] {
            const at::Tensor values = there(x, {c, n, a});
            const at::Tensor sum = at::zeros({n, n}, values.options().dtype(at::kDouble));
            for (int64_t k = 0; k < c; ++k) {
                const at::Tensor part = values.select(0, k);
                sum.add_(at::mm(part, part.t()));
            }
            read(sum, g);
        });
    }

    blas::Eigen<float> leading_eigenvectors(const float* matrix, int64_t n, int64_t r) override {
        return eigenvectors(matrix, n, r);
    }
    blas::Eigen<double> leading_eigenvectors(const double* matrix, int64_t n, int64_t r) override {
        return eigenvectors(matrix, n, r);
    }

    bool orthonormalize(int64_t n, int64_t r, float* x) override {
        return computed([&] {
            const at::Tensor columns = there(x, {r, n});
            const auto [factor, info] = at::linalg_cholesky_ex(at::mm(columns, columns.t()));
            if (info.item<int>() != 0 || factor.diagonal().min().item<float>() < blas::kLeastPivot)
                return false;
            read(at::linalg_solve_triangular(factor, columns, /*upper=*/false), x);
            return true;
        });
    }
    bool solve_right(int64_t n, int64_t r, const float* h, float* x) override {
        return computed([&] {
            const at::Tensor out = solved(there(h, {r, r}).t(), there(x, {r, n}));
            if (out.defined()) read(out, x);
            return out.defined();
        });
    }
    bool cholesky(int64_t n, double* g) override {
        return computed([&] {
            const at::Tensor matrix = there(g, {n, n});
            const auto [factor, info] = at::linalg_cholesky_ex(matrix.t());
            if (info.item<int>() != 0) return false;
            read(factor.t() + matrix.tril(-1), g);
            return true;
        });
    }
    bool solve_shifted(int64_t n, int64_t r, const double* g, double shift, double* b) override {
        return computed([&] {
            const at::Tensor matrix = there(g, {n, n}).t().clone();
            matrix.diagonal().add_(shift);
            const at::Tensor out = solved(matrix, there(b, {r, n}).t());
            if (out.defined()) read(out.t(), b);
            return out.defined();
        });
    }

    void householder(int64_t n, int64_t r, float* x) override { basis(n, r, x); }
    void householder(int64_t n, int64_t r, double* x) override { basis(n, r, x); }

    std::unique_ptr<blas::DeviceSums> sums(int64_t inputs, int64_t outputs) override {
        return computed([&] { return std::make_unique<TorchSums>(inputs, outputs, device_); });
    }

    void keep(const void* data, size_t bytes) override { kept_.keep(data, bytes); }
    void changed(const void* data, size_t bytes) override {
        computed([&] { kept_.changed(data, bytes); });
    }
    void release(const void* data) override { kept_.release(data); }
    bool is_kept(const void* data) override { return kept_.has(data); }

private:
    static constexpr int64_t kPanel = int64_t{1} << 24;  // elements in float64 at a time

    // On the device.
    template <typename Real>
    at::Tensor there(const Real* data, at::IntArrayRef shape) {
        const at::Tensor kept = kept_.get(data, shape, device_);
        return kept.defined() ? kept : here(data, shape).to(device_);
    }

    // An operand of `count` products, or one for all: [count or 1, rows, columns] of its transposed.
    template <typename Real>
    at::Tensor operand(const Real* data, int64_t count, int64_t step, int64_t rows, int64_t columns, Op op) {
        const int64_t own = step == 0 ? 1 : count;
        return op == Op::plain ? there(data, {own, columns, rows})
                               : there(data, {own, rows, columns}).transpose(1, 2);
    }

    // [c, n, a] to [n, c a]
    static at::Tensor rows_of(const at::Tensor& x) { return x.transpose(0, 1).reshape({x.size(1), -1}); }

    template <typename Real>
    void product_of(const Product<Real>& p) {
        computed([&] {
            const auto [m, n, k] = p.shape;
            const int64_t count = p.steps.count;
            const at::Tensor a = operand(p.a, count, p.steps.a, m, k, p.op_a),
                             b = operand(p.b, count, p.steps.b, k, n, p.op_b);
            if (count == 1) {
                at::Tensor out = at::mm(b[0], a[0]);
                if (p.alpha != 1) out.mul_(p.alpha);
                if (p.beta != 0) out.add_(here(p.c, {n, m}).to(device_), p.beta);
                return read(out, p.c);
            }
            if (p.steps.c == 0) {  // over k of all
                const at::Tensor out = at::mm(b.expand({count, n, k}).transpose(0, 1).reshape({n, count * k}),
                                              a.expand({count, k, m}).reshape({count * k, m}));
                return read(out, p.c);
            }
            read(at::matmul(b, a), p.c);
        });
    }

    // Of a column-major matrix that is given by its lower triangle, which is a tensor's upper one.
    static at::Tensor both_triangles(const at::Tensor& g) { return g.triu() + g.triu(1).t(); }

    template <typename Real>
    void symmetric_product(int64_t n, int64_t r, const Real* g, const Real* b, Real* c) {
        computed([&] { read(at::mm(there(b, {r, n}), both_triangles(there(g, {n, n}))), c); });
    }

    // matrix^-1 x, from the matrix's lower triangle. Undefined when it is not positive definite.
    static at::Tensor solved(const at::Tensor& matrix, const at::Tensor& x) {
        const auto [factor, info] = at::linalg_cholesky_ex(matrix);
        return info.item<int>() == 0 ? at::cholesky_solve(x, factor) : at::Tensor();
    }

    template <typename Real>
    blas::Eigen<Real> eigenvectors(const Real* matrix, int64_t n, int64_t r) {
        return computed([&] {
            const at::Tensor x = there(matrix, {n, n}).t();  // whose lower triangle is read
            blas::Eigen<Real> out;
            out.values.resize(static_cast<size_t>(n));
            at::Tensor values, vectors;
            if (r == 0) {
                values = at::linalg_eigvalsh(x);
            } else {
                std::tie(values, vectors) = at::linalg_eigh(x);
                out.vectors.resize(static_cast<size_t>(n * r));
                read(vectors.t().narrow(0, n - r, r).flip(0), out.vectors.data());
            }
            read(values.flip(0).to(at::kDouble), out.values.data());
            return out;
        });
    }

    template <typename Real>
    void basis(int64_t n, int64_t r, Real* x) {
        computed([&] { read(std::get<0>(at::linalg_qr(there(x, {r, n}).t())).t(), x); });
    }

    at::Device device_;
    KeptCopies kept_;
};

}  // namespace

std::unique_ptr<blas::Device> torch_linalg(at::Device device) {
    full_precision();
    return std::make_unique<TorchLinalg>(device);
}

}  // namespace refold
