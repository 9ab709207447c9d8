#include "eval/read_speed.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace refold {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBytes = size_t{256} << 20;
constexpr int kPasses = 4;  // the first to warm up

// Ones, in large pages where the system has them, as weights are.
std::unique_ptr<uint64_t, decltype(&std::free)> new_memory() {
    constexpr size_t kLargePage = size_t{2} << 20;
    std::unique_ptr<uint64_t, decltype(&std::free)> memory(
        static_cast<uint64_t*>(std::aligned_alloc(kLargePage, kBytes)), std::free);
    if (memory == nullptr) throw std::bad_alloc();
    madvise(memory.get(), kBytes, MADV_HUGEPAGE);
    std::fill_n(memory.get(), kBytes / sizeof(uint64_t), 1);
    return memory;
}

uint64_t sum(const uint64_t* numbers, size_t count) {
    // Independent sums, so that only reading takes time.
    uint64_t sums[32] = {};
    for (size_t i = 0; i + 32 <= count; i += 32) {
        for (size_t k = 0; k < 32; ++k) sums[k] += numbers[i + k];
    }
    uint64_t all = 0;
    for (const uint64_t part : sums) all += part;
    return all;
}

}  // namespace

double read_speed(int threads) {
    const auto memory = new_memory();
    const size_t share = kBytes / sizeof(uint64_t) / static_cast<size_t>(threads);
    std::atomic<uint64_t> total{0};  // so that the sums are needed
    double best = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
        const auto start = Clock::now();
        {
            std::vector<std::jthread> pool;
            for (int t = 0; t < threads; ++t)
                pool.emplace_back(
                    [&, t] { total += sum(memory.get() + static_cast<size_t>(t) * share, share); });
        }
        const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
        if (pass > 0)
            best = std::max(best, static_cast<double>(share * sizeof(uint64_t)) * threads / seconds);
    }
    return best;
}

uint64_t bytes_read_per_token(const Model& model) {
    std::set<std::string> read;
    const auto add = [&](const Slots& slots, bool but_table) {
        for (const auto& [slot, expression] : slots) {
            const bool table =
                slot == Slot::layer_input_embd || (slot == Slot::token_embd && slots.contains(Slot::output));
            if (but_table && table) continue;
            for (const std::string& tensor : tensors_of(expression)) read.insert(tensor);
        }
    };
    add(model.topology.globals, true);
    for (const Slots& layer : model.topology.layers) add(layer, false);
    uint64_t bytes = 0;
    for (const std::string& tensor : read) bytes += model.tensor(tensor).bytes();
    return bytes;
}

}  // namespace refold
