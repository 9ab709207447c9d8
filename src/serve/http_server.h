// An HTTP server for many, slow and hostile clients: cpp-httplib's requests, routes and responses over
// refold's own connections. One thread accepts connections and collects requests, never waiting for a client;
// a bounded number of workers answers complete requests. A client that sends slowly, or nothing, costs a
// descriptor and no thread. A few paths have a worker of their own, which answers while all others are busy.
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
    int port = 0;  // 0: any free port
    size_t workers = 16;
    std::vector<std::string> quick_paths;  // of the one more worker; answers must be short
    size_t connections = 4096;             // more are refused with 503; lowered to the limit of open files
    size_t most_head = 32 << 10, most_body = 8 << 20;  // bytes
    size_t most_buffered = 256 << 20;  // bytes, of all requests together that come in or are answered
    std::chrono::milliseconds idle_timeout{60000};   // until a connection without a request is closed
    std::chrono::milliseconds read_timeout{30000};   // from a request's first byte to its last, else 408
    std::chrono::milliseconds write_timeout{30000};  // that one response may wait for its client in all
};

// One request and its response. Every worker has its own.
struct Exchange {
    int socket = -1;
    std::string client;  // "address:port"
    std::string method, path;
    const char* endpoint = "other";  // route, for metrics
    int status = 0;
    bool client_gone = false;  // left before the response was complete
    bool close = false;        // the connection is not reused
    int64_t prompt_tokens = 0, completion_tokens = 0;
    std::chrono::steady_clock::time_point start;  // when the request was complete
    std::shared_ptr<void> holds;                  // kept until the response is sent
    size_t memory = 0;                            // bytes that answering took, as far as they are known
};

class HttpServer : public httplib::Server {
public:
    explicit HttpServer(HttpOptions options);
    ~HttpServer() override;  // as stop()

    // Called after every response, by any worker.
    std::function<void(const Exchange&)> on_exchange;
    // Makes the body of a response that has none.
    std::function<std::string(int status, const std::string& problem)> error_text;

    // Listens. Throws Error(io) when the address is not available.
    void bind();
    int port() const { return port_; }
    // It listens for programs on this machine only.
    bool on_loopback() const { return on_loopback_; }
    void start();
    // Accepts no more connections and requests; waits until the accepted ones are answered. Returns whether
    // they are.
    bool drain(std::chrono::milliseconds most);
    // Cuts off all connections that are being answered.
    void cut_off();
    // Closes all connections and ends all threads, once their handlers have returned.
    void stop();

    int64_t open_connections() const { return open_; }
    // The exchange that the calling handler answers.
    static Exchange& exchange();
    // The client of that exchange has closed its end.
    static bool client_gone();

private:
    using Clock = std::chrono::steady_clock;
    struct Connection;
    using ConnectionPtr = std::unique_ptr<Connection>;

    // On the collecting thread.
    void collect();
    void accept_all();
    // Returns whether the connection stays open.
    bool receive(Connection& connection);
    // What the connection has received counts as buffered.
    void recount(Connection& connection);
    // Returns whether all of the body is there; then its length is, too.
    bool join_chunks(Connection& connection, const HttpHead& head);
    // Hands a complete request to the workers and then returns false.
    bool examine(ConnectionPtr& connection);
    void refuse(Connection& connection, int status, const std::string& problem);
    bool expired(Connection& connection);
    void wake() const;

    // Complete requests that wait for a worker.
    struct Queue {
        std::deque<ConnectionPtr> waiting;
        std::condition_variable changed_or_stop;
    };

    // On the workers of `queue`.
    void work(Queue& queue);
    // Returns whether the connection can be reused.
    bool answer(Connection& connection, std::chrono::milliseconds write_timeout);

    HttpOptions options_;
    int listener_ = -1, wake_ = -1, port_ = 0;
    bool on_loopback_ = false;
    std::unordered_map<int, ConnectionPtr> waiting_;  // collecting thread only
    size_t buffered_ = 0;                             // collecting thread only
    std::atomic<size_t> freed_{0};                    // bytes that requests left since memory was given back
    std::atomic<int64_t> open_{0};
    std::atomic<bool> draining_{false}, stopping_{false};

    std::mutex mutex_;
    std::condition_variable all_answered_;
    Queue ready_, quick_;
    std::vector<ConnectionPtr> returned_;
    std::unordered_map<int, Connection*> answering_;

    std::thread collector_;
    std::vector<std::thread> threads_;
};

}  // namespace refold
