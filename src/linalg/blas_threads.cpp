#include "linalg/blas_threads.h"

extern "C" {
void openblas_set_num_threads(int threads) __attribute__((weak));
int openblas_get_num_threads(void) __attribute__((weak));
}

namespace refold::blas {

void set_threads(int threads) {
    if (openblas_set_num_threads != nullptr) openblas_set_num_threads(threads);
}

SingleThread::SingleThread(bool wanted) {
    if (!wanted || openblas_get_num_threads == nullptr) return;
    before_ = openblas_get_num_threads();
    set_threads(1);
}

void SingleThread::in_this_thread() const {
    if (before_ > 0) set_threads(1);
}

SingleThread::~SingleThread() {
    if (before_ > 0) set_threads(before_);
}

}  // namespace refold::blas
