#include "linalg/blas_threads.h"

#include <dlfcn.h>

#include "core/parallel.h"
#include "core/spinning_threads.h"

extern "C" {
void openblas_set_num_threads(int threads) __attribute__((weak));
int openblas_get_num_threads(void) __attribute__((weak));
}

namespace refold::blas {
namespace {

// Of the OpenMP that BLAS brings along; null where its threads are its own.
struct OpenMp {
    template <typename Function>
    static Function* find(const char* name) {
        return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
    }

    int (*threads)() = find<int()>("omp_get_max_threads");
    void (*set_threads)(int) = find<void(int)>("omp_set_num_threads");  // of the calling thread
    int (*pause)(int) = find<int(int)>("omp_pause_resource_all");

    static const OpenMp& get() {
        static const OpenMp functions;
        return functions;
    }
    bool complete() const { return threads != nullptr && set_threads != nullptr && pause != nullptr; }
};

}  // namespace

void set_threads(int threads) {
    if (openblas_set_num_threads != nullptr) openblas_set_num_threads(threads);
}

int threads() {
    if (OpenMp::get().complete()) return OpenMp::get().threads();
    return openblas_get_num_threads == nullptr ? default_threads() : openblas_get_num_threads();
}

namespace {

// Of the calling thread, where OpenMP counts them so.
void set_own_threads(int threads) {
    if (OpenMp::get().complete())
        OpenMp::get().set_threads(threads);
    else
        set_threads(threads);
}

}  // namespace

SingleThread::SingleThread(bool wanted) {
    if (!wanted || (openblas_get_num_threads == nullptr && !OpenMp::get().complete())) return;
    before_ = threads();
    set_own_threads(1);
}

void SingleThread::in_this_thread() const {
    if (before_ > 0) set_own_threads(1);
}

SingleThread::~SingleThread() {
    if (before_ > 0) set_own_threads(before_);
}

void share_out(int64_t count, const std::function<void(int64_t)>& body) {
    SpinningThreads::all_sleep();  // one of them would be on this thread's core
    const int threads = blas::threads();
    const SingleThread single(threads > 1 && count > 1);
    parallel_for(count, threads, [&](int64_t i) {
        single.in_this_thread();
        body(i);
    });
}

OperationThreads::OperationThreads(int64_t multiplications) : all_(multiplications > kWorthThreads) {
    if (all_) SpinningThreads::all_sleep();
    if (all_ || !OpenMp::get().complete()) return;
    before_ = threads();
    set_own_threads(1);
}

OperationThreads::~OperationThreads() {
    constexpr int kSoft = 1;  // omp_pause_soft
    if (!OpenMp::get().complete()) return;
    if (all_)
        OpenMp::get().pause(kSoft);
    else
        set_own_threads(before_);
}

}  // namespace refold::blas
