// The number of BLAS threads, set through OpenBLAS's own functions. No effect on another BLAS.
#pragma once

namespace refold::blas {

// Sets the threads of all later products and decompositions.
void set_threads(int threads);

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

}  // namespace refold::blas
