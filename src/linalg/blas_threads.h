// The threads of BLAS, through functions of OpenBLAS and of OpenMP. No effect on another BLAS.
#pragma once

#include <cstdint>
#include <functional>

namespace refold::blas {

// Starting threads takes about as long as so many multiplications.
inline constexpr int64_t kWorthThreads = 1 << 23;

// Sets the threads of all later products and decompositions.
void set_threads(int threads);

// The threads of products in the calling thread.
int threads();

// Limits BLAS to one thread while it lives, for callers that run in parallel: each of their threads calls
// in_this_thread() first, as OpenBLAS with OpenMP counts threads for each calling thread. Otherwise every one
// of them would use all, and they would wait for each other in loops that never sleep.
class SingleThread {
public:
    explicit SingleThread(bool wanted);
    void in_this_thread() const;
    ~SingleThread();
    SingleThread(const SingleThread&) = delete;
    SingleThread& operator=(const SingleThread&) = delete;

private:
    int before_ = 0;
};

// Calls body(i) for every i in [0, count) on as many threads as BLAS has, with one thread of BLAS for each.
// What is not computed yet is taken by whichever thread is free: one that has to wait for another process
// holds up no other, and none spins. Inside of a SingleThread it is a plain loop.
void share_out(int64_t count, const std::function<void(int64_t)>& body);

// The threads of one operation of so many multiplications, while it lives: all for a large one, one for a
// small one. OpenMP's threads would go on spinning for the next operation, each on a core that others need;
// these end with the operation.
class OperationThreads {
public:
    explicit OperationThreads(int64_t multiplications);
    ~OperationThreads();
    OperationThreads(const OperationThreads&) = delete;
    OperationThreads& operator=(const OperationThreads&) = delete;

private:
    bool all_;
    int before_ = 0;
};

}  // namespace refold::blas
