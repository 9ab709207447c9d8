#include "train/torch/gradient_buckets.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>

#include "train/several.h"
#include "train/torch/optimizer.h"

namespace refold {
namespace {

constexpr int64_t kFeatures = 12, kBatch = 8, kSmall = 4 * 100;  // bytes: several buckets

// The leaves of a network with a shared matrix and an unused leaf.
std::map<std::string, at::Tensor> bucket_leaves() {
    at::Generator random = at::make_generator<at::CPUGeneratorImpl>(3);
    std::map<std::string, at::Tensor> leaves;
    for (const char* name : {"in", "shared", "out", "unused"})
        leaves[name] = (at::randn({kFeatures, kFeatures}, random) * 0.3).requires_grad_();
    leaves["bias"] = at::zeros({kFeatures}).requires_grad_();
    return leaves;
}

std::vector<at::Tensor> values_of(const std::map<std::string, at::Tensor>& leaves) {
    std::vector<at::Tensor> values;
    for (const auto& [name, leaf] : leaves) values.push_back(leaf);
    return values;
}

at::Tensor loss_of(const std::map<std::string, at::Tensor>& leaves, const at::Tensor& x) {
    at::Tensor h = at::tanh(at::matmul(x, leaves.at("in")) + leaves.at("bias"));
    for (int i = 0; i < 2; ++i) h = h + at::tanh(at::matmul(h, leaves.at("shared")));
    return (at::matmul(h, leaves.at("out")) - x.flip(1)).square().sum();
}

at::Tensor batch_of(int64_t step) {
    at::Generator random = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(100 + step));
    return at::randn({kBatch, kFeatures}, random);
}

// Losses of a run in which every process takes its share of the batches, in `micro` micro batches. `zero`:
// ZeRO's stage.
std::vector<double> curve(Processes& processes, int64_t micro, int zero = 1) {
    const auto leaves = bucket_leaves();
    TrainOptions options;
    options.weight_decay = 0.01;
    Optimizer optimizer(leaves, options, processes);
    GradientBuckets buckets(values_of(leaves), processes, kSmall);
    if (zero == 2) buckets.share(optimizer.shares(), optimizer.shared_gradients());
    std::vector<double> losses;
    for (int64_t step = 0; step < 12; ++step) {
        const at::Tensor own = batch_of(step).chunk(processes.size())[static_cast<size_t>(processes.rank())];
        at::Tensor loss = at::zeros({}, at::kDouble);
        for (int64_t m = 0; m < micro; ++m) {
            const at::Tensor part = loss_of(leaves, own.chunk(micro)[static_cast<size_t>(m)]);
            if (zero == 2 || m + 1 == micro) buckets.begin();
            part.backward();
            if (zero == 2 || m + 1 == micro) buckets.finish();
            loss += part.detach();
        }
        processes.sum(loss);
        losses.push_back(loss.item<double>() / kBatch);
        optimizer.step(0.01, 1.0 / kBatch);
        optimizer.zero_gradients();
    }
    return losses;
}

TEST(GradientBuckets, ManyProcessesAreOneWithTheWholeBatch) {
    Processes alone{Rendezvous{}};
    const std::vector<double> expected = curve(alone, 1);
    EXPECT_LT(expected.back(), 0.9 * expected.front());
    EXPECT_EQ(curve(alone, 1, 2), expected);
    for (const auto& [size, micro, zero] : std::vector<std::tuple<int, int64_t, int>>{
             {2, 1, 1}, {2, 2, 1}, {4, 2, 1}, {2, 1, 2}, {3, 1, 2}, {4, 2, 2}}) {
        std::mutex mutex;
        std::vector<std::vector<double>> all;
        for (int run = 0; run < 2; ++run) {
            in_processes(size, [&](Processes& processes) {
                const auto losses = curve(processes, micro, zero);
                const std::lock_guard lock(mutex);
                all.push_back(losses);
            });
        }
        for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(all[0][i], expected[i], 1e-5 * expected[i]);
        for (const auto& losses : all) EXPECT_EQ(losses, all[0]) << "another run or process";
    }
}

// A deep network, whose layers are larger than a bucket. With stage 2 no process holds more of the others'
// shares than a few of them.
TEST(GradientBuckets, NoProcessHoldsAllGradients) {
    constexpr int64_t kLayers = 30, kLayer = kFeatures * kFeatures;
    const auto peak = [&](Processes& processes, bool share, bool unused) {
        std::map<std::string, at::Tensor> leaves;
        std::vector<at::Tensor> order;
        at::Tensor x = batch_of(1), sum = x;
        for (int64_t layer = 0; layer < kLayers; ++layer) {
            at::Tensor w = (at::eye(kFeatures) * 0.5).requires_grad_();
            leaves["layer" + std::to_string(100 + layer)] = w;
            order.insert(order.begin(), w);
            // One is never used, so that its bucket is never complete.
            if (!unused || layer != kLayers - 2) x = at::matmul(x, w);
        }
        const at::Tensor loss = x.square().sum();
        Optimizer optimizer(leaves, {}, processes);
        GradientBuckets buckets(order, processes, kSmall);
        if (share) buckets.share(optimizer.shares(), optimizer.shared_gradients());
        buckets.begin();
        loss.backward();
        buckets.finish();
        for (const auto& leaf : order) EXPECT_EQ(leaf.grad().defined(), !share);
        return static_cast<int64_t>(buckets.peak_bytes());
    };
    constexpr int64_t kWhole = 4 * kLayers * kLayer, kFew = 2 * (2 * kSmall + 4 * kLayer) + 4 * kLayer;
    for (const int size : {2, 3}) {
        in_processes(size, [&](Processes& processes) {
            EXPECT_GE(peak(processes, false, false), kWhole);
            for (const bool unused : {false, true}) {
                EXPECT_LE(peak(processes, true, unused), kWhole / size + kFew) << unused;
                EXPECT_LT(kWhole / size + kFew, kWhole);
            }
        });
    }
}

// Compares with gradients summed by hand, for backward passes that differ in number and in the leaves they
// use.
void pieces_and_unused_leaves(Processes& processes, bool share) {
    const auto leaves = bucket_leaves();
    Optimizer optimizer(leaves, {}, processes);
    GradientBuckets buckets(values_of(leaves), processes, kSmall);
    if (share) buckets.share(optimizer.shares(), optimizer.shared_gradients());
    const auto passes_of = [](int64_t step, int rank) { return 1 + (step * 3 + rank * step) % 4; };
    const auto loss_of_pass = [&](const std::map<std::string, at::Tensor>& of, int64_t step, int64_t n,
                                  int rank) {
        const at::Tensor x = batch_of(step * 10 + n) + rank;
        if (n % 2 == 1) return at::matmul(x, of.at("shared")).square().sum();
        if (step == 3 && rank == 1) return at::matmul(x, of.at("unused")).square().sum();
        return loss_of(of, x);
    };
    for (int64_t step = 0; step < 8; ++step) {
        buckets.begin();
        for (int64_t n = 0; n < passes_of(step, processes.rank()); ++n)
            loss_of_pass(leaves, step, n, processes.rank()).backward();
        buckets.finish();
        const auto expected = bucket_leaves();
        for (int rank = 0; rank < 2; ++rank)
            for (int64_t n = 0; n < passes_of(step, rank); ++n)
                loss_of_pass(expected, step, n, rank).backward();
        for (const auto& [name, leaf] : leaves) {
            const at::Tensor sum =
                expected.at(name).grad().defined() ? expected.at(name).grad() : at::zeros_like(leaf);
            ASSERT_EQ(leaf.grad().defined(), !share) << name;
            const int64_t begin = optimizer.shares().begin_of(name);
            const at::Tensor found = share ? optimizer.shares()
                                                 .gathered(optimizer.shared_gradients(), begin, leaf.numel())
                                                 .view(leaf.sizes())
                                           : leaf.grad();
            EXPECT_TRUE(at::allclose(found, sum, 1e-4, 1e-3)) << name << " in step " << step;
        }
        optimizer.zero_gradients();
    }
}

TEST(GradientBuckets, PiecesAndUnusedLeavesMayChange) {
    for (const bool share : {false, true})
        in_processes(2, [&](Processes& processes) { pieces_and_unused_leaves(processes, share); });
}

}  // namespace
}  // namespace refold
