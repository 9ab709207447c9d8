// What the processes of a worker's clients know of each other: memory that they share.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/worker/share.h"

namespace refold::rpc {

inline constexpr size_t kMostClients = 16, kMostDevices = 16;

// Lies in memory that survives fork(), so nothing here may point elsewhere.
struct Board {
    struct Client {
        std::array<std::atomic<uint64_t>, kMostDevices> held{};  // bytes, by device
        // Milliseconds of the steady clock: when the last message came and was answered; kNow while one is.
        std::atomic<int64_t> heard{0};
        std::atomic<int64_t> computed{0};  // likewise for steps; 0: none yet
    };
    static constexpr int64_t kNow = INT64_MAX;

    std::array<std::atomic<uint64_t>, kMostDevices> limit{};  // of all clients together, by device
    std::array<Client, kMostClients> clients{};

    // Null if there is no memory.
    static Board* shared();
    static int64_t milliseconds();
    uint64_t held(size_t device) const;
    // When a client is gone.
    void clear(size_t client);
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Of the client at one place of the board.
class BoardShare : public Share {
public:
    // `free_now`: what is free of a device at this moment, whoever uses the rest.
    BoardShare(Board& board, size_t client, int threads, uint64_t (*free_now)(size_t device))
        : board_(board), own_(board.clients[client]), threads_(threads), free_now_(free_now) {}

    bool take(size_t device, uint64_t bytes) override;
    void give_back(size_t device, uint64_t bytes) override;
    uint64_t free(size_t device) override;
    // Threads of several steps at once would only wait for each other: each step has its part of them.
    int begin_step() override;
    void end_step() override;

private:
    Board& board_;
    Board::Client& own_;
    const int threads_;
    uint64_t (*const free_now_)(size_t device);
};

}  // namespace refold::rpc
