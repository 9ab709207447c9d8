#include "serve/format_turns.h"

#include <algorithm>
#include <chrono>

#include "serve/api_error.h"
#include "serve/service.h"

namespace refold {

bool FormatTurns::is_next(std::list<uint64_t>::const_iterator waiter) const {
    if (running_.size() >= at_once_ || running_.contains(*waiter)) return false;
    const auto last = [&](uint64_t client) {
        const auto at = last_turn_.find(client);
        return at == last_turn_.end() ? 0 : at->second;
    };
    bool came_before = true;
    for (auto other = waiting_.begin(); other != waiting_.end(); ++other) {
        if (other == waiter) {
            came_before = false;
        } else if (!running_.contains(*other)) {
            const uint64_t others = last(*other), own = last(*waiter);
            if (others < own || (others == own && came_before)) return false;
        }
    }
    return true;
}

std::unique_ptr<FormatTurns::Turn> FormatTurns::take(uint64_t client, const std::function<void()>& check) {
    std::unique_lock lock(mutex_);
    const auto own = static_cast<size_t>(std::ranges::count(waiting_, client));
    if (waiting_.size() >= most_ || own >= std::max<size_t>(1, most_ * 3 / 4)) {
        ApiError error(429, "too many requests wait for their formats to be compiled - try again later", "",
                       "queue_full");
        error.retry_after = 1;
        throw error;
    }
    const auto waiter = waiting_.insert(waiting_.end(), client);
    const auto leave = [&] {
        waiting_.erase(waiter);
        changed_.notify_all();
    };
    while (!is_next(waiter)) {
        changed_.wait_for(lock, std::chrono::milliseconds(50));
        lock.unlock();
        try {
            check();
        } catch (...) {
            lock.lock();
            leave();
            forget(client);
            throw;
        }
        lock.lock();
    }
    leave();
    running_.insert(client);
    last_turn_[client] = ++n_turns_;
    return std::make_unique<Turn>(*this, client);
}

void FormatTurns::end(uint64_t client) {
    const std::lock_guard lock(mutex_);
    running_.erase(client);
    forget(client);
    changed_.notify_all();
}

// Of clients that neither wait nor run nothing is known.
void FormatTurns::forget(uint64_t client) {
    if (!running_.contains(client) && std::ranges::find(waiting_, client) == waiting_.end())
        last_turn_.erase(client);
}

uint64_t current_client() {
    const Exchange& exchange = HttpServer::exchange();
    return std::hash<std::string>()(exchange.holder ? "key " + exchange.holder->name()
                                                    : exchange.client.substr(0, exchange.client.rfind(':')));
}

static thread_local RequestFormats* t_formats = nullptr;

RequestFormats::RequestFormats(Service& service, FormatTurns& turns) : service_(service), turns_(turns) {
    const auto check = [this] { service_.check(); };
    work_.emplace([this, check] {
        check();
        if (!turn_) turn_ = turns_.take(current_client(), check);
    });
    t_formats = this;
}
RequestFormats::~RequestFormats() { t_formats = nullptr; }

void RequestFormats::end() {
    if (t_formats == nullptr) return;
    t_formats->work_.reset();
    t_formats->turn_.reset();
}

}  // namespace refold
