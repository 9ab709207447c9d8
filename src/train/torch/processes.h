// The processes of a data-parallel run, connected by c10d through torchrun's environment variables.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace refold {

// The rank of a process in its run, and where the processes connect.
struct Rendezvous {
    int rank = 0, size = 1;
    int local_rank = 0;   // rank on this machine, the number of its device
    std::string address;  // of the process of rank 0
    uint16_t port = 0;
    std::chrono::milliseconds timeout = std::chrono::minutes(10);  // for connecting and for every operation

    // Reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK (default RANK). One process when
    // WORLD_SIZE is 1 or missing. Uses the next port when torchrun's agent listens on MASTER_PORT itself
    // (TORCHELASTIC_USE_AGENT_STORE). REFOLD_PROCESS_TIMEOUT is in seconds. Throws Error(usage) for variables
    // that are missing, malformed or out of range.
    static Rendezvous from_environment();
};

class Processes {
public:
    // Returns when all processes have arrived. Throws Error(usage) for a duplicate rank, Error(io) naming the
    // missing ranks when a process does not arrive in time, Error(unsupported) for several processes when
    // libtorch has neither gloo nor NCCL.
    explicit Processes(const Rendezvous& rendezvous = Rendezvous::from_environment());
    ~Processes();
    Processes(const Processes&) = delete;
    Processes& operator=(const Processes&) = delete;

    int rank() const { return rendezvous_.rank; }
    int size() const { return rendezvous_.size; }
    int local_rank() const { return rendezvous_.local_rank; }
    bool first() const { return rendezvous_.rank == 0; }

    // Collective operations, in rendezvous; all processes must call them in the same order. CPU tensors go
    // over gloo, or over NCCL in a build without gloo; CUDA tensors go over NCCL. They throw Error(io) when a
    // process is lost or does not join before the timeout.
    void sum(at::Tensor& x);
    void broadcast(at::Tensor& x, int from);
    // All-gather of x [size, ...]: every process gives row rank() and gets the others.
    void gather(at::Tensor& x);
    void barrier();

    // A sum that overlaps with the backward pass; x must be contiguous.
    class Pending;
    std::shared_ptr<Pending> begin_sum(at::Tensor x);
    // The same for one process only; x of the others has no meaning afterwards.
    std::shared_ptr<Pending> begin_sum_to(at::Tensor x, int rank);
    void wait(Pending& pending);

private:
    struct Group;
    std::unique_ptr<Group> group_;  // null with a single process
    Rendezvous rendezvous_;
};

}  // namespace refold
