// Memory that all requests share: what a body costs is taken before the body is read.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace refold {

class MemoryBudget {
public:
    // A part of the budget, given back when it is destroyed.
    class Lease {
    public:
        Lease(MemoryBudget& budget, size_t bytes) : budget_(budget), bytes_(bytes) {}
        ~Lease() { shrink(0); }
        Lease(const Lease&) = delete;
        Lease& operator=(const Lease&) = delete;

        size_t bytes() const { return bytes_; }
        // Gives back all but `bytes`.
        void shrink(size_t bytes);

    private:
        MemoryBudget& budget_;
        size_t bytes_;
    };

    explicit MemoryBudget(size_t bytes) : bytes_(bytes) {}

    size_t bytes() const { return bytes_; }
    // Null when so much is not free. Any thread.
    std::shared_ptr<Lease> take(size_t bytes);

private:
    const size_t bytes_;
    std::atomic<size_t> taken_ = 0;
};

// `most`, or a quarter of the address space that the system still allows this process (ulimit -v), the
// stacks of `threads` more threads left out.
size_t allowed_memory(size_t most, size_t threads);

}  // namespace refold
