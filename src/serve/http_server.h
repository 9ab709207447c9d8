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
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "serve/exchange.h"
#include "serve/http_head.h"
#include "serve/tls.h"

namespace refold {

struct HttpOptions {
    std::string host = "127.0.0.1";
    int port = 0;       // 0: any free port
    int listener = -1;  // a socket that listens already, in place of host and port
    std::optional<TlsFiles> tls;
    size_t workers = 16;
    std::vector<std::string> quick_paths;  // of the one more worker; answers must be short
    // Lowered to the limit of open files. For one more, those are closed that have waited longest without a
    // complete request, those that have sent nothing first; where all are being answered, it is refused with
    // 503.
    size_t connections = 4096;
    size_t most_head = 32 << 10, most_body = 8 << 20;  // bytes
    size_t most_buffered = 256 << 20;  // bytes, of all requests together that come in or are answered
    std::chrono::milliseconds idle_timeout{60000};   // until a connection without a request is closed
    std::chrono::milliseconds read_timeout{30000};   // from a request's first byte to its last, else 408
    std::chrono::milliseconds write_timeout{30000};  // that one response may wait for its client in all
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
    const std::string& host() const { return options_.host; }
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
    // Null without TLS.
    Tls* tls() { return tls_.get(); }
    // The exchange that the calling handler answers. Every worker has its own.
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
    bool too_many() const;  // connections, or bytes that they have sent
    void make_room();
    void drop(int socket);
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
    void listen_on_address();

    // Connections that wait for a worker.
    struct Queue {
        std::deque<ConnectionPtr> waiting;
        std::condition_variable changed_or_stop;
    };

    void hand_over(ConnectionPtr connection, Queue& queue);
    // The first connection of the queue, to be answered or else greeted; null when the server stops.
    ConnectionPtr take(Queue& queue, bool answers);
    // To the collecting thread.
    void give_back(ConnectionPtr connection);

    // On a thread of its own: handshakes take time to compute.
    void greet();
    // On the workers of `queue`.
    void work(Queue& queue);
    // Returns whether the connection can be reused.
    bool answer(Connection& connection, std::chrono::milliseconds write_timeout);

    HttpOptions options_;
    const std::unique_ptr<Tls> tls_;
    int listener_ = -1, wake_ = -1, port_ = 0;
    bool on_loopback_ = false;
    std::unordered_map<int, ConnectionPtr> waiting_;  // collecting thread only
    size_t buffered_ = 0;                             // collecting thread only
    std::atomic<size_t> freed_{0};                    // bytes that requests left since memory was given back
    std::atomic<int64_t> open_{0};
    std::atomic<bool> draining_{false}, stopping_{false};

    std::mutex mutex_;
    std::condition_variable all_answered_;
    Queue ready_, quick_, greeting_;
    std::vector<ConnectionPtr> returned_;
    std::unordered_map<int, Connection*> answering_;

    std::thread collector_;
    std::vector<std::thread> threads_;
};

}  // namespace refold
