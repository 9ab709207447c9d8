// The processes of a data-parallel run: c10d by the environment variables of torchrun.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <span>
#include <vector>

namespace refold {

class Processes {
public:
    // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; without WORLD_SIZE, or with 1, this process alone. Throws
    // Error(usage) for variables that are missing or malformed, Error(io) when a process does not arrive in time.
    explicit Processes(std::chrono::seconds timeout = std::chrono::minutes(10));
    ~Processes();
    Processes(const Processes&) = delete;
    Processes& operator=(const Processes&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    bool first() const { return rank_ == 0; }

    // In place, on all processes in the same order. Throw Error(io) when a process is lost.
    void sum(at::Tensor& x);
    void broadcast(at::Tensor& x, int from);
    void barrier();

    // A sum that goes on beside the backward pass.
    class Pending;
    std::shared_ptr<Pending> begin_sum(at::Tensor x);
    void wait(Pending& pending);

private:
    struct Group;
    std::unique_ptr<Group> group_;
    int rank_ = 0, size_ = 1;
};

// Sums the gradients of leaves over all processes, bucket by bucket, while the backward pass still computes the
// others (Li et al. 2020, PyTorch Distributed).
class GradientBuckets {
public:
    GradientBuckets(std::vector<at::Tensor> leaves, Processes& processes, int64_t bucket_bytes = 25 << 20);
    ~GradientBuckets();
    // Before the backward pass whose gradients complete a step; those before it only accumulate.
    void begin();
    // After it: every leaf's gradient is the sum over all processes.
    void finish();

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace refold
