#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <mutex>

#include "train/torch/gradient_hook.h"
#include "train/torch/processes.h"

namespace refold {

// All processes issue the same sums in the same order: buckets by number, each when it is ready, and the last
// one in finish(). Which leaves get gradients, and when, may differ between processes. A bucket is ready when
// its leaves have got as many contributions to their gradients as in the previous pass (with recomputed
// blocks a leaf gets several). If more arrive, the bucket was sent too early: the last bucket also carries an
// `early` flag per bucket, and a bucket that was early in any process is summed again.
struct GradientBuckets::State {
    struct Bucket {
        std::vector<size_t> leaves;
        int64_t numbers = 0;
        size_t missing = 0;
        bool early = false;
        at::Tensor flat;
        std::shared_ptr<Processes::Pending> sum;
    };

    State(std::vector<at::Tensor> all, Processes& p, int64_t bytes)
        : leaves(std::move(all)),
          processes(p),
          bucket_bytes(bytes),
          contributions(leaves.size()),
          expected(leaves.size()) {
        if (processes.size() == 1) return;
        for (size_t i = 0; i < leaves.size(); ++i) hooks.emplace_back(leaves[i], [this, i] { arrived(i); });
    }

    void arrived(size_t leaf) {
        const std::lock_guard lock(mutex);
        if (!active) return;
        if (contributions[leaf]++ == 0) order.push_back(static_cast<int64_t>(leaf));
        if (buckets.empty()) return;
        const size_t number = bucket_of[leaf];
        if (number < begun) {
            buckets[number].early = true;
        } else if (contributions[leaf] == expected[leaf]) {
            --buckets[number].missing;
            while (begun + 1 < buckets.size() && buckets[begun].missing == 0) begin_sum(begun++, {});
        }
    }

    void begin_sum(size_t number, const std::vector<float>& flags) {
        const c10::NoGradGuard no_gradients;
        Bucket& bucket = buckets[number];
        const auto extra = static_cast<int64_t>(flags.size());
        bucket.flat = at::empty({bucket.numbers + extra}, leaves[0].options().requires_grad(false));
        int64_t at = 0;
        for (const size_t i : bucket.leaves) {
            at::Tensor part = bucket.flat.narrow(0, at, leaves[i].numel());
            if (leaves[i].grad().defined()) {
                part.copy_(leaves[i].grad().reshape(-1));
            } else {
                part.zero_();
            }
            at += leaves[i].numel();
        }
        if (extra > 0) bucket.flat.narrow(0, at, extra).copy_(at::tensor(flags));
        bucket.sum = processes.begin_sum(bucket.flat);
    }

    // Orders leaves by the arrival of the first process's gradients, followed by leaves without a gradient.
    void make_buckets() {
        at::Tensor ranks = at::empty({static_cast<int64_t>(leaves.size())}, at::kLong);
        std::vector<bool> used(leaves.size());
        for (const int64_t leaf : order) used[static_cast<size_t>(leaf)] = true;
        std::vector<int64_t> all = order;
        for (size_t i = leaves.size(); i-- > 0;)
            if (!used[i]) all.push_back(static_cast<int64_t>(i));
        std::copy(all.begin(), all.end(), ranks.data_ptr<int64_t>());
        processes.broadcast(ranks, 0);
        bucket_of.resize(leaves.size());
        for (int64_t i = 0; i < ranks.numel(); ++i) {
            const auto leaf = static_cast<size_t>(ranks.data_ptr<int64_t>()[i]);
            const int64_t numbers = leaves[leaf].numel();
            if (buckets.empty() || (buckets.back().numbers + numbers) * 4 > bucket_bytes)
                buckets.emplace_back();
            buckets.back().leaves.push_back(leaf);
            buckets.back().numbers += numbers;
            bucket_of[leaf] = buckets.size() - 1;
        }
    }

    void take(Bucket& bucket) {
        const c10::NoGradGuard no_gradients;
        int64_t at = 0;
        for (const size_t i : bucket.leaves) {
            const at::Tensor& leaf = leaves[i];
            const at::Tensor part = bucket.flat.narrow(0, at, leaf.numel()).view(leaf.sizes());
            if (leaf.grad().defined()) {
                leaf.mutable_grad().copy_(part);
            } else {
                leaf.mutable_grad() = part.clone();
            }
            at += leaf.numel();
        }
        bucket.flat = at::Tensor();
        bucket.sum.reset();
    }

    void finish() {
        if (leaves.empty() || processes.size() == 1) return;
        active = false;
        if (buckets.empty()) make_buckets();
        while (begun + 1 < buckets.size()) begin_sum(begun++, {});
        std::vector<float> flags;
        for (const Bucket& bucket : buckets) flags.push_back(bucket.early ? 1.0F : 0.0F);
        begin_sum(begun++, flags);
        processes.wait(*buckets.back().sum);
        const at::Tensor early =
            buckets.back().flat.narrow(0, buckets.back().numbers, static_cast<int64_t>(flags.size())).cpu();
        for (size_t b = 0; b < buckets.size(); ++b) {
            processes.wait(*buckets[b].sum);
            if (early.data_ptr<float>()[b] > 0) {
                begin_sum(b, {});
                processes.wait(*buckets[b].sum);
            }
            take(buckets[b]);
        }
        expected = contributions;
    }

    void begin() {
        std::fill(contributions.begin(), contributions.end(), 0);
        order.clear();
        begun = 0;
        for (Bucket& bucket : buckets) {
            bucket.early = false;
            bucket.missing = static_cast<size_t>(std::count_if(bucket.leaves.begin(), bucket.leaves.end(),
                                                               [&](size_t i) { return expected[i] > 0; }));
        }
        active = true;
    }

    std::vector<at::Tensor> leaves;
    Processes& processes;
    int64_t bucket_bytes;
    std::vector<GradientHook> hooks;

    std::mutex mutex;  // gradients on other devices arrive in other threads
    bool active = false;
    std::vector<int64_t> contributions, expected;  // per leaf: in this pass, in the previous one
    std::vector<int64_t> order;                    // leaves by their first contribution
    std::vector<Bucket> buckets;
    std::vector<size_t> bucket_of;
    size_t begun = 0;  // number of buckets whose sums have begun
};

GradientBuckets::GradientBuckets(std::vector<at::Tensor> leaves, Processes& processes, int64_t bucket_bytes)
    : state_(std::make_unique<State>(std::move(leaves), processes, bucket_bytes)) {}
GradientBuckets::~GradientBuckets() = default;
void GradientBuckets::begin() { state_->begin(); }
void GradientBuckets::finish() { state_->finish(); }

}  // namespace refold
