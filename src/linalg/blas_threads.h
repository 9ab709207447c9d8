// Threads of BLAS, through OpenBLAS's own functions: another BLAS is left as it is.
#pragma once

namespace refold::blas {

// The threads of every later product and decomposition.
void set_threads(int threads);

// One BLAS thread for each of several callers, while it lives.
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
