// The processes of a data-parallel run: c10d by the environment variables of torchrun.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace refold {

// Where a process stands among those of its run.
struct ProcessPlace {
    int rank = 0, size = 1;
    int local_rank = 0;   // among the processes of one machine: the number of its device
    std::string address;  // of the process of rank 0, where they all meet
    uint16_t port = 0;
    std::chrono::milliseconds timeout = std::chrono::minutes(10);  // of meeting, and of every operation

    // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK (RANK where it is missing); without WORLD_SIZE,
    // or with 1, one process. Where torchrun's agent listens on MASTER_PORT itself
    // (TORCHELASTIC_USE_AGENT_STORE), the next port. REFOLD_PROCESS_TIMEOUT: seconds. Throws Error(usage) for
    // variables that are missing, malformed or out of range.
    static ProcessPlace from_environment();
};

class Processes {
public:
    // Returns when all have arrived. Throws Error(usage) for a rank that is given twice, Error(io) that names
    // who is missing when a process does not arrive in time, Error(unsupported) for several processes where
    // libtorch has neither gloo nor NCCL.
    explicit Processes(const ProcessPlace& place = ProcessPlace::from_environment());
    ~Processes();
    Processes(const Processes&) = delete;
    Processes& operator=(const Processes&) = delete;

    int rank() const { return place_.rank; }
    int size() const { return place_.size; }
    int local_rank() const { return place_.local_rank; }
    bool first() const { return place_.rank == 0; }

    // In place, on all processes in the same order: tensors of the CPU over gloo, where there is none like
    // those of a CUDA device over NCCL. Throw Error(io) when a process is lost, or waits elsewhere until the
    // time is over.
    void sum(at::Tensor& x);
    void broadcast(at::Tensor& x, int from);
    // Rows of x [size, ...]: every process gives row rank() and gets the others.
    void gather(at::Tensor& x);
    void barrier();

    // A sum that goes on beside the backward pass; x must be contiguous.
    class Pending;
    std::shared_ptr<Pending> begin_sum(at::Tensor x);
    void wait(Pending& pending);

private:
    struct Group;
    std::unique_ptr<Group> group_;  // none when alone
    ProcessPlace place_;
};

// Sums the gradients of leaves over all processes, bucket by bucket, while the backward pass still computes
// the others (Li et al. 2020, PyTorch Distributed). Buckets hold leaves in the order in which their gradients
// are complete in the first pass. A leaf may get its gradient in several pieces, or none, and not in every
// pass.
class GradientBuckets {
public:
    GradientBuckets(std::vector<at::Tensor> leaves, Processes& processes, int64_t bucket_bytes = 25 << 20);
    ~GradientBuckets();
    // Before the backward pass whose gradients complete a step; those before it only accumulate.
    void begin();
    // After it: every leaf's gradient is the sum over all processes; with several processes every leaf has
    // one.
    void finish();

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace refold
