// The machine's cores, shared by threads of this process that compute at the same time: engines of several
// models that are served.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>

namespace refold {

// Two steps at the same time get half of the cores each. With all cores each they would hold each other up,
// as the threads of a step wait for each other at every operation. One after the other they would leave cores
// idle in those parts of a step that one thread computes alone.
class CoreShare {
public:
    // `recent`: a caller whose last step ended no longer ago is about to begin the next one.
    explicit CoreShare(int cores, std::chrono::milliseconds recent = std::chrono::milliseconds(20))
        : cores_(cores), recent_(recent) {}
    // Of this process, with all that it may use.
    static CoreShare& of_process();

    // The threads that a step may have, as long as this lives.
    class Part {
    public:
        Part(CoreShare& share, int threads) : share_(share), threads_(threads) {}
        ~Part() { share_.give_back(threads_); }
        Part(const Part&) = delete;
        Part& operator=(const Part&) = delete;
        int threads() const { return threads_; }

    private:
        CoreShare& share_;
        const int threads_;
    };
    // For a step of the calling thread that can use `most` threads: so many, or an equal part of the cores
    // where other threads compute steps too. Waits until these cores are free, in the order of the calls.
    Part take(int most);

private:
    using Clock = std::chrono::steady_clock;

    int part_of(int most);
    void give_back(int threads);

    const int cores_;
    const Clock::duration recent_;
    std::mutex mutex_;
    std::condition_variable changed_;
    int taken_ = 0;
    uint64_t last_ = 0, now_ = 0;                        // numbers drawn by those who wait
    std::map<std::thread::id, Clock::time_point> busy_;  // until when each caller counts
};

}  // namespace refold
