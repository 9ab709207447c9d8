#include "train/torch/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
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

at::Tensor flat(const at::Tensor& x, int64_t first, int64_t count) {
    return x.detach().reshape(-1).narrow(0, first, count);
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

Optimizer::Optimizer(std::map<std::string, at::Tensor> leaves, const TrainOptions& options,
                     Processes& processes)
    : leaves_(std::move(leaves)), options_(options), processes_(processes) {
    for (const auto& [name, leaf] : leaves_) {
        if (leaf.scalar_type() != at::kFloat || !leaf.is_contiguous())
            fail(ErrorCode::internal, "optimizer", "'{}' is not contiguous float32", name);
        numbers_ += leaf.numel();
    }
    share_ = (numbers_ + processes_.size() - 1) / processes_.size();
    const int64_t first = std::min(numbers_, processes_.rank() * share_);
    own_ = slices(first, std::min(share_, numbers_ - first));
    const int64_t count = own_.empty() ? 0 : own_.back().state + own_.back().count;
    const auto like = leaves_.empty() ? at::TensorOptions(at::kFloat) : leaves_.begin()->second.options();
    m_ = at::zeros({count}, like.requires_grad(false));
    v_ = at::zeros({count}, like.requires_grad(false));
}

std::vector<Optimizer::LeafSlice> Optimizer::slices(int64_t first, int64_t count) const {
    std::vector<LeafSlice> out;
    int64_t begin = 0;  // of the current leaf
    for (const auto& [name, leaf] : leaves_) {
        const int64_t from = std::max(first, begin), to = std::min(first + count, begin + leaf.numel());
        if (from < to) out.push_back({leaf, from - begin, to - from, from - first});
        begin += leaf.numel();
    }
    return out;
}

std::vector<at::Tensor> Optimizer::own_gradients() const {
    std::vector<at::Tensor> gradients;
    for (const LeafSlice& slice : own_) {
        const at::Tensor& gradient = slice.leaf.grad();
        gradients.push_back(gradient.defined() ? flat(gradient, slice.first, slice.count)
                                               : at::zeros({slice.count}, m_.options()));
    }
    return gradients;
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
        for_blocks(own_, [&](int64_t, size_t i, int64_t first, int64_t count) {
            const LeafSlice& slice = own_[i];
            const int64_t state = slice.state + first;
            adam(slice.leaf.data_ptr<float>() + slice.first + first, gradients[i].data_ptr<float>() + first,
                 m_.data_ptr<float>() + state, v_.data_ptr<float>() + state, count, of_leaf(slice.leaf));
        });
    } else {
        for (size_t i = 0; i < own_.size(); ++i) {
            const LeafSlice& slice = own_[i];
            adam(flat(slice.leaf, slice.first, slice.count), gradients[i],
                 m_.narrow(0, slice.state, slice.count), v_.narrow(0, slice.state, slice.count),
                 of_leaf(slice.leaf));
        }
    }
    if (processes_.size() > 1) share_weights();
}

void Optimizer::share_weights() {
    const int processes = processes_.size();
    for (int64_t at = 0; at < share_; at += kSharedAtOnce) {
        const int64_t count = std::min(kSharedAtOnce, share_ - at);
        at::Tensor all = at::empty({processes, count}, m_.options());
        const auto slices_of = [&](int rank) {
            const int64_t first = std::min(numbers_, rank * share_ + at);
            return slices(first, std::min(count, numbers_ - first));
        };
        for (const LeafSlice& slice : slices_of(processes_.rank()))
            all[processes_.rank()]
                .narrow(0, slice.state, slice.count)
                .copy_(flat(slice.leaf, slice.first, slice.count));
        processes_.gather(all);
        for (int rank = 0; rank < processes; ++rank) {
            if (rank == processes_.rank()) continue;
            for (const LeafSlice& slice : slices_of(rank))
                flat(slice.leaf, slice.first, slice.count)
                    .copy_(all[rank].narrow(0, slice.state, slice.count));
        }
    }
}

double Optimizer::gradient_norm() const {
    const c10::NoGradGuard no_gradients;
    const std::vector<at::Tensor> gradients = own_gradients();
    double squares = 0;
    if (m_.is_cpu()) {
        std::vector<double> sums(static_cast<size_t>(numbers_ / kBlock) +
                                 leaves_.size());  // at least the number of blocks
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
    for (const auto& [name, leaf] : leaves_) leaf.mutable_grad().reset();
}

// Number of processes, rank, and a hash (FNV-1a) of the leaves' names and sizes.
at::Tensor Optimizer::belongs_to() const {
    uint64_t hash = 14695981039346656037U;
    const auto add = [&](std::string_view bytes) {
        for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211U;
    };
    for (const auto& [name, leaf] : leaves_) add(fmt::format("{}:{};", name, leaf.numel()));
    return at::tensor({static_cast<int64_t>(processes_.size()), static_cast<int64_t>(processes_.rank()),
                       static_cast<int64_t>(hash)},
                      at::kLong);
}

std::map<std::string, at::Tensor> Optimizer::state() const {
    return {{"m", m_}, {"v", v_}, {"steps", at::tensor({steps_}, at::kLong)}, {"of", belongs_to()}};
}

void Optimizer::restore(const std::map<std::string, at::Tensor>& state) {
    const auto tensor = [&](const char* name, at::ScalarType type, int64_t count) -> const at::Tensor& {
        const auto found = state.find(name);
        if (found == state.end() || found->second.scalar_type() != type || found->second.numel() != count)
            fail(ErrorCode::input, "optimizer",
                 "the stored state has no '{}' of {} numbers - it is of another model", name, count);
        return found->second;
    };
    const at::Tensor of = tensor("of", at::kLong, 3), own = belongs_to();
    const auto number = [](const at::Tensor& x, int64_t i) { return x[i].item<int64_t>(); };
    if (number(of, 0) != number(own, 0) || number(of, 1) != number(own, 1)) {
        fail(ErrorCode::input, "optimizer",
             "the stored state is of process {} of {}, expected {} of {} - go on with as many processes as "
             "before",
             number(of, 1), number(of, 0), number(own, 1), number(own, 0));
    }
    if (number(of, 2) != number(own, 2))
        fail(ErrorCode::input, "optimizer",
             "the stored state is of other weights than those that are trained");
    const at::Tensor m = tensor("m", at::kFloat, m_.numel()), v = tensor("v", at::kFloat, v_.numel());
    m_.copy_(m);
    v_.copy_(v);
    steps_ = tensor("steps", at::kLong, 1).item<int64_t>();
}

}  // namespace refold
