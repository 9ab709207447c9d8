// An HTTP server for many, slow and hostile clients: cpp-httplib's requests, routes and responses over
// connections of our own. One thread accepts and collects requests without ever waiting for a client; a
// bounded number of workers answers those that are complete. A client that sends slowly, or nothing, costs a
// descriptor and no thread.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "serve/http_head.h"

namespace refold {

struct HttpOptions {
    std::string host = "127.0.0.1";
    int port = 0;  // 0: any that is free
    size_t workers = 16;
    size_t connections = 4096;  // more are refused with 503; fewer where the system allows fewer files
    size_t most_head = 32 << 10, most_body = 8 << 20;  // bytes
    size_t most_buffered = 256 << 20;                  // of all requests that are still coming
    std::chrono::milliseconds idle_timeout{60000};     // without a request: closed
    std::chrono::milliseconds read_timeout{30000};     // from a request's first byte to its last: 408
    std::chrono::milliseconds write_timeout{30000};    // that a client lets one response wait in all
};

// One request and its response, on the worker's thread.
struct Exchange {
    int socket = -1;
    std::string client;  // address and port
    std::string method, path;
    const char* endpoint = "other";  // the route
    int status = 0;
    bool client_gone = false;  // left before all was said
    bool close = false;        // the connection is not to be used again
    int64_t prompt_tokens = 0, completion_tokens = 0;
    std::chrono::steady_clock::time_point start;
};

class HttpServer : public httplib::Server {
public:
    explicit HttpServer(HttpOptions options);
    ~HttpServer() override;  // as stop()

    // Called behind every response, by any worker.
    std::function<void(const Exchange&)> on_exchange;
    // Makes the body of a response with this status that has none.
    std::function<std::string(int status, const std::string& problem)> error_text;

    // Listens. Throws Error(io) when the address cannot be had.
    void bind();
    int port() const { return port_; }
    void start();
    // Takes no connection and no request any more; waits until those that have come are answered.
    void drain(std::chrono::milliseconds most);
    // Ends every connection and thread.
    void stop();

    int64_t open_connections() const { return open_; }
    // That of the calling thread, in handlers.
    static Exchange& exchange();
    // The client of the exchange has closed its end.
    static bool client_gone();

private:
    using Clock = std::chrono::steady_clock;
    struct Connection;
    using ConnectionPtr = std::unique_ptr<Connection>;

    // The thread that waits for clients.
    void collect();
    void accept_all();
    // False when the connection is finished with.
    bool receive(Connection& connection);
    bool examine(ConnectionPtr& connection);
    void refuse(Connection& connection, int status, const std::string& problem);
    bool expired(Connection& connection);
    void wake() const;

    // The workers.
    void work();
    // True when the connection may be used again.
    bool answer(Connection& connection);

    HttpOptions options_;
    int listener_ = -1, wake_ = -1, port_ = 0;
    std::unordered_map<int, ConnectionPtr> waiting_;  // of the collecting thread alone
    size_t buffered_ = 0;                             // likewise
    std::atomic<int64_t> open_{0};
    std::atomic<bool> draining_{false}, stopping_{false};

    std::mutex mutex_;
    std::condition_variable ready_or_stop_, all_answered_;
    std::deque<ConnectionPtr> ready_;
    std::vector<ConnectionPtr> returned_;
    std::unordered_map<int, Connection*> answering_;

    std::thread collector_;
    std::vector<std::thread> threads_;
};

}  // namespace refold
