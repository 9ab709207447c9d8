// What the endpoints of one server share.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/api_keys.h"
#include "serve/http_server.h"
#include "serve/memory_budget.h"
#include "serve/metrics.h"
#include "serve/served_model.h"
#include "serve/served_request.h"

namespace refold {

struct ServerOptions {
    std::string host = "127.0.0.1";
    std::string version;           // of refold
    int port = 8080;               // 0: any free port
    int listener = -1;             // a socket that listens already, in place of host and port
    std::optional<TlsFiles> tls;   // HTTPS
    std::vector<ApiKey> api_keys;  // empty: every request is allowed
    std::string cors_origin;       // whose pages may send requests; empty: none, "*": any
    // Of each model's scheduler; they bound the requests that are answered at a time.
    int64_t slots = 8, queue = 64;
    int64_t models = 1;                         // how many may be busy at a time
    std::chrono::milliseconds timeout{600000};  // of a request with all its choices, from its arrival
    // Most bytes that reading and keeping the bodies of all requests may take, estimated; less where the
    // system limits the address space.
    size_t most_memory = 256 << 20;
    // See HttpOptions.
    size_t most_head = 32 << 10, most_body = 8 << 20, connections = 4096;
    std::chrono::milliseconds idle_timeout{60000}, read_timeout{30000}, write_timeout{30000};
};

// Threads that answer: one for every request that the schedulers of busy models take, and a few to say that
// it is full.
size_t workers(const ServerOptions& options);

class Service {
public:
    using Clock = std::chrono::steady_clock;

    // `models` outlives it.
    Service(Models& models, const ServerOptions& options);

    Models& models;
    const ServerOptions options;
    HttpCounts counts;
    ApiKeys keys;
    std::atomic<bool> stopping{false};
    std::function<int64_t()> connections;  // that are open

    double uptime_seconds() const;
    // When the current request must be answered.
    Clock::time_point deadline() const;
    // Throws ApiError when the work for the current request is in vain: the client left, the server stops,
    // the time is over.
    void check() const;
    // The same but for the server, whose running requests may end after it was asked to stop.
    void check_running() const;
    // The model that the current request asks for; waits until it is loaded. Throws as Models::find() and
    // check() do.
    std::shared_ptr<ServedModel> model(const std::string& name);
    // What `parse` makes of the body. The memory for both is held until the request is answered. Throws
    // ApiError when there is too little of it, and as `parse` does.
    template <typename Parse>
    auto read(const httplib::Request& request, Parse&& parse) {
        const Reserved reserved = reserve(request.body);
        auto asked = parse(request.body);
        reserved.lease->shrink(reserved.to_keep);
        return asked;
    }

    // Memory for a part of the current request's answer, until the answer is made: `held` bytes are already.
    // Throws ApiError when there is too little.
    std::shared_ptr<MemoryBudget::Lease> hold(size_t bytes, size_t held);

private:
    struct Reserved {
        std::shared_ptr<MemoryBudget::Lease> lease;  // what reading takes; the exchange holds it, too
        size_t to_keep = 0;                          // bytes
    };
    Reserved reserve(const std::string& body);

    MemoryBudget memory_;
    const Clock::time_point started_ = Clock::now();
};

// 503: other requests need the memory.
ApiError no_memory();

}  // namespace refold
