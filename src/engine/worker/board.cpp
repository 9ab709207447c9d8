#include "engine/worker/board.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <new>

namespace refold::rpc {

Board* Board::shared() {
    void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? nullptr : new (memory) Board;
}

int64_t Board::milliseconds() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

uint64_t Board::held(size_t device) const {
    uint64_t sum = 0;
    for (const Client& client : clients) sum += client.held[device];
    return sum;
}

void Board::clear(size_t client) {
    for (auto& bytes : clients[client].held) bytes = 0;
    clients[client].heard = milliseconds();
    clients[client].computed = 0;
}

bool BoardShare::take(size_t device, uint64_t bytes) {
    if (bytes > board_.limit[device] || bytes > free_now_(device)) return false;
    // Two that take the last bytes at the same time may both get none.
    own_.held[device] += bytes;
    if (board_.held(device) <= board_.limit[device]) return true;
    own_.held[device] -= bytes;
    return false;
}

void BoardShare::give_back(size_t device, uint64_t bytes) { own_.held[device] -= bytes; }

uint64_t BoardShare::free(size_t device) {
    const uint64_t limit = board_.limit[device], held = board_.held(device);
    return std::min(limit - std::min(limit, held), free_now_(device));
}

int BoardShare::begin_step() {
    constexpr int64_t kRecent = 20;  // one whose last step ended no longer ago is about to begin the next one
    const int64_t now = Board::milliseconds();
    own_.computed = Board::kNow;
    const auto busy = std::ranges::count_if(board_.clients, [&](const Board::Client& client) {
        const int64_t last = client.computed;
        return last != 0 && (last == Board::kNow || last + kRecent >= now);
    });
    return std::max(1, threads_ / static_cast<int>(std::max<int64_t>(1, busy)));
}

void BoardShare::end_step() { own_.computed = Board::milliseconds(); }

}  // namespace refold::rpc
