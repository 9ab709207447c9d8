#include "train/torch/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/parallel.h"

namespace refold {
namespace {

constexpr int64_t kBlock = 1 << 15;         // elements of one block of a thread's work
constexpr int64_t kSharedAtOnce = 1 << 22;  // elements per process in one exchange of new weights

struct Coefficients {
    float scale, beta1, beta2, epsilon;
    float keep;                // weights are scaled by it: weight decay
    float step, inverse_root;  // factors of m and of the root of v, with bias correction
};

void adam(float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v, int64_t n,
          const Coefficients& c) {
    for (int64_t i = 0; i < n; ++i) {
        const float gradient = g[i] * c.scale;
        m[i] = c.beta1 * m[i] + (1 - c.beta1) * gradient;
        v[i] = c.beta2 * v[i] + (1 - c.beta2) * gradient * gradient;
        p[i] = c.keep * p[i] - c.step * (m[i] / (std::sqrt(v[i]) * c.inverse_root + c.epsilon));
    }
}

void adam(at::Tensor p, const at::Tensor& g, at::Tensor m, at::Tensor v, const Coefficients& c) {
    const at::Tensor gradient = g.mul(c.scale);
    m.mul_(c.beta1).add_(gradient, 1 - c.beta1);
    v.mul_(c.beta2).addcmul_(gradient, gradient, 1 - c.beta2);
    p.mul_(c.keep).addcdiv_(m, v.sqrt().mul_(c.inverse_root).add_(c.epsilon), -c.step);
}

// Calls body(block, slice, first, count) for blocks of the slices, on several threads.
template <typename Slices, typename Body>
void for_blocks(const Slices& slices, Body&& body) {
    struct Block {
        size_t slice;
        int64_t first;
    };
    std::vector<Block> blocks;
    for (size_t i = 0; i < slices.size(); ++i)
        for (int64_t first = 0; first < slices[i].count; first += kBlock) blocks.push_back({i, first});
    const auto count = static_cast<int64_t>(blocks.size());
    parallel_for(count, at::get_num_threads(), [&](int64_t b) {
        const Block& block = blocks[static_cast<size_t>(b)];
        body(b, block.slice, block.first, std::min(kBlock, slices[block.slice].count - block.first));
    });
}

}  // namespace

Optimizer::Optimizer(Leaves leaves, const TrainOptions& options, Processes& processes)
    : shares_(std::move(leaves), processes),
      options_(options),
      processes_(processes),
      own_(shares_.slices(shares_.own_first(), shares_.own_count())) {
    bool rounded = false;
    for (const auto& [name, leaf] : shares_.leaves()) {
        const at::ScalarType type = leaf.scalar_type();
        if ((type != at::kFloat && type != at::kBFloat16) || !leaf.is_contiguous())
            fail(ErrorCode::internal, "optimizer", "'{}' is not contiguous float32 or BF16", name);
        rounded |= type != at::kFloat;
    }
    const auto& all = shares_.leaves();
    const auto like = all.empty() ? at::TensorOptions() : all.begin()->second.options();
    m_ = at::zeros({shares_.own_count()}, like.dtype(at::kFloat).requires_grad(false));
    v_ = at::zeros_like(m_);
    if (rounded) master_ = own_weights();
}

at::Tensor Optimizer::shared_gradients() {
    if (!gradients_.defined()) gradients_ = at::zeros_like(m_);
    return gradients_;
}

std::vector<at::Tensor> Optimizer::own_gradients() const {
    std::vector<at::Tensor> gradients;
    for (const LeafSlice& slice : own_) {
        const at::Tensor& gradient = slice.leaf.grad();
        if (gradients_.defined()) {
            gradients.push_back(gradients_.narrow(0, slice.at, slice.count));
        } else if (gradient.defined()) {
            gradients.push_back(slice.of(gradient).to(at::kFloat));
        } else {
            gradients.push_back(at::zeros({slice.count}, m_.options()));
        }
    }
    return gradients;
}

at::Tensor Optimizer::weights_of(const LeafSlice& slice) const {
    return master_.defined() ? master_.narrow(0, slice.at, slice.count) : slice.values();
}

at::Tensor Optimizer::own_weights() const {
    if (master_.defined()) return master_;
    at::Tensor out = at::empty_like(m_);
    for (const LeafSlice& slice : own_) out.narrow(0, slice.at, slice.count).copy_(slice.values());
    return out;
}

void Optimizer::set_masters(const std::function<at::Tensor(const std::string& name)>& values) {
    if (!master_.defined()) return;
    const c10::NoGradGuard no_gradients;
    for (const auto& [name, leaf] : shares_.leaves()) {
        const int64_t begin = shares_.begin_of(name), own = shares_.own_first();
        // Only what belongs to the share is computed.
        if (begin + leaf.numel() <= own || begin >= own + shares_.own_count()) continue;
        shares_.take(master_, begin, values(name).reshape(-1));
    }
}

void Optimizer::set_own_weights(const at::Tensor& weights) {
    const c10::NoGradGuard no_gradients;
    for (const LeafSlice& slice : own_) weights_of(slice).copy_(weights.narrow(0, slice.at, slice.count));
    share_weights();
}

void Optimizer::step(double learning_rate, double gradient_scale) {
    const c10::NoGradGuard no_gradients;
    ++steps_;
    const auto steps = static_cast<double>(steps_);
    const auto of_leaf = [&](const at::Tensor& leaf) {
        const double decay = leaf.dim() > 1 ? options_.weight_decay : 0;
        return Coefficients{
            .scale = static_cast<float>(gradient_scale),
            .beta1 = static_cast<float>(options_.beta1),
            .beta2 = static_cast<float>(options_.beta2),
            .epsilon = static_cast<float>(options_.epsilon),
            .keep = static_cast<float>(1 - learning_rate * decay),
            .step = static_cast<float>(learning_rate / (1 - std::pow(options_.beta1, steps))),
            .inverse_root = static_cast<float>(1 / std::sqrt(1 - std::pow(options_.beta2, steps))),
        };
    };
    const std::vector<at::Tensor> gradients = own_gradients();
    if (m_.is_cpu()) {
        std::vector<at::Tensor> weights;
        for (const LeafSlice& slice : own_) weights.push_back(weights_of(slice));
        for_blocks(own_, [&](int64_t, size_t i, int64_t first, int64_t count) {
            const LeafSlice& slice = own_[i];
            const int64_t state = slice.at + first;
            adam(weights[i].data_ptr<float>() + first, gradients[i].data_ptr<float>() + first,
                 m_.data_ptr<float>() + state, v_.data_ptr<float>() + state, count, of_leaf(slice.leaf));
        });
    } else {
        for (size_t i = 0; i < own_.size(); ++i) {
            const LeafSlice& slice = own_[i];
            adam(weights_of(slice), gradients[i], m_.narrow(0, slice.at, slice.count),
                 v_.narrow(0, slice.at, slice.count), of_leaf(slice.leaf));
        }
    }
    share_weights();
}

void Optimizer::share_weights() {
    const c10::NoGradGuard no_gradients;
    if (master_.defined()) {
        for (const LeafSlice& slice : own_) slice.values().copy_(weights_of(slice));
    }
    const int processes = processes_.size();
    if (processes == 1) return;
    for (int64_t at = 0; at < shares_.size(); at += kSharedAtOnce) {
        const int64_t count = std::min(kSharedAtOnce, shares_.size() - at);
        std::vector<std::vector<LeafSlice>> by_rank;
        bool rounded = true;  // all of them
        for (int rank = 0; rank < processes; ++rank) {
            const int64_t end = shares_.first(rank) + shares_.count(rank);
            const int64_t first = std::min(end, shares_.first(rank) + at);
            by_rank.push_back(shares_.slices(first, std::min(count, end - first)));
            for (const LeafSlice& slice : by_rank.back())
                rounded &= slice.leaf.scalar_type() == at::kBFloat16;
        }
        at::Tensor all =
            at::empty({processes, count}, m_.options().dtype(rounded ? at::kBFloat16 : at::kFloat));
        for (const LeafSlice& slice : by_rank[static_cast<size_t>(processes_.rank())])
            all[processes_.rank()].narrow(0, slice.at, slice.count).copy_(slice.values());
        processes_.gather(all);
        for (int rank = 0; rank < processes; ++rank) {
            if (rank == processes_.rank()) continue;
            for (const LeafSlice& slice : by_rank[static_cast<size_t>(rank)])
                slice.values().copy_(all[rank].narrow(0, slice.at, slice.count));
        }
    }
}

double Optimizer::gradient_norm() const {
    const c10::NoGradGuard no_gradients;
    const std::vector<at::Tensor> gradients = own_gradients();
    double squares = 0;
    if (m_.is_cpu()) {
        // At least the number of blocks.
        std::vector<double> sums(static_cast<size_t>(shares_.numbers() / kBlock) + shares_.leaves().size());
        for_blocks(own_, [&](int64_t block, size_t i, int64_t first, int64_t count) {
            const float* g = gradients[i].data_ptr<float>() + first;
            double sum = 0;
            for (int64_t n = 0; n < count; ++n) sum += static_cast<double>(g[n]) * g[n];
            sums[static_cast<size_t>(block)] = sum;
        });
        for (const double sum : sums) squares += sum;
    } else {
        at::Tensor sum = at::zeros({}, m_.options().dtype(at::kDouble));
        for (const at::Tensor& gradient : gradients) sum += gradient.to(at::kDouble).square_().sum();
        squares = sum.item<double>();
    }
    at::Tensor sum = at::tensor({squares}, at::kDouble);
    processes_.sum(sum);
    return std::sqrt(sum.item<double>());
}

void Optimizer::zero_gradients() {
    for (const auto& [name, leaf] : shares_.leaves()) leaf.mutable_grad().reset();
    if (gradients_.defined()) gradients_.zero_();
}

Leaves Optimizer::state() const {
    Leaves out = {{"m", m_}, {"v", v_}};
    if (master_.defined()) out["weights"] = master_;
    return out;
}

uint64_t Optimizer::bytes() const {
    uint64_t bytes = 0;
    for (const auto& [name, tensor] : state()) bytes += tensor.nbytes();
    return bytes;
}

}  // namespace refold
