// Thread pools whose threads spin for a while after their work, so that they start at once when there is
// more. They would take cores from whoever works next, so one pool of the process is awake at a time.
#pragma once

#include <functional>

namespace refold {

class SpinningThreads {
public:
    // `sleep` puts the threads to sleep until they have work again. It is called from any thread, also while
    // they work, and must not throw.
    explicit SpinningThreads(std::function<void()> sleep) : sleep_(std::move(sleep)) {}
    // After this, `sleep` is not called any more.
    ~SpinningThreads();
    SpinningThreads(const SpinningThreads&) = delete;
    SpinningThreads& operator=(const SpinningThreads&) = delete;

    // Before these threads work: those of other owners go to sleep.
    void wake();
    // Before work of threads that do not spin, such as a product by BLAS: all go to sleep.
    static void all_sleep();

private:
    std::function<void()> sleep_;
};

}  // namespace refold
