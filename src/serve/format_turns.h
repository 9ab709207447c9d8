// Which requests' formats are compiled: few at a time, and one of each client.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>

#include "grammar/format_work.h"

namespace refold {

class Service;

class FormatTurns {
public:
    // `at_once`: turns that may be taken at a time. `waiting`: most requests that wait for one, three
    // quarters of them of the same client: each of them occupies a thread that answers.
    FormatTurns(size_t at_once, size_t waiting) : at_once_(at_once), most_(waiting) {}

    class Turn;
    // Waits until it is the client's turn: of those who wait, the one whose last turn was longest ago. Calls
    // `check` meanwhile, which may throw. Throws ApiError (429) when too many wait. The turn ends with what
    // is returned.
    std::unique_ptr<Turn> take(uint64_t client, const std::function<void()>& check);

private:
    bool is_next(std::list<uint64_t>::const_iterator waiter) const;
    void end(uint64_t client);
    void forget(uint64_t client);

    const size_t at_once_, most_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::list<uint64_t> waiting_;                       // clients, in the order that they came
    std::set<uint64_t> running_;                        // clients
    std::unordered_map<uint64_t, uint64_t> last_turn_;  // of clients that wait or run; others had none
    uint64_t n_turns_ = 0;
};

class FormatTurns::Turn {
public:
    Turn(FormatTurns& turns, uint64_t client) : turns_(turns), client_(client) {}
    ~Turn() { turns_.end(client_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

private:
    FormatTurns& turns_;
    const uint64_t client_;
};

// Who sends the request that this thread answers, as a number: the holder of its key, or its address if there
// is none.
uint64_t current_client();

// The work for the formats of the request that this thread answers, until end() or while it lives. A format
// that takes more than a moment waits for its turn. The work ends when Service::check() throws: the client
// left, or the time is over.
class RequestFormats {
public:
    RequestFormats(Service& service, FormatTurns& turns);
    ~RequestFormats();
    RequestFormats(const RequestFormats&) = delete;
    RequestFormats& operator=(const RequestFormats&) = delete;

    // Of this thread's, if there is one: all formats of its request are compiled.
    static void end();

private:
    Service& service_;
    FormatTurns& turns_;
    std::unique_ptr<FormatTurns::Turn> turn_;
    std::optional<FormatWork> work_;
};

}  // namespace refold
