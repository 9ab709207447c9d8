// The number of BLAS threads, set through OpenBLAS's own functions. No effect on another BLAS.
#pragma once

namespace refold::blas {

// Sets the threads of all later products and decompositions.
void set_threads(int threads);

// Limits BLAS to one thread while it lives, for callers that run in parallel.
class SingleThread {
public:
    explicit SingleThread(bool wanted);
    ~SingleThread();
    SingleThread(const SingleThread&) = delete;
    SingleThread& operator=(const SingleThread&) = delete;

private:
    int before_ = 0;
};

}  // namespace refold::blas
