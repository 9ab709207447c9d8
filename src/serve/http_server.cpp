#include "serve/http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <malloc.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "core/error.h"
#include "serve/chunked_body.h"
#include "serve/exchange_stream.h"
#include "serve/thread_priority.h"
#include "serve/wire.h"

namespace refold {
namespace {

using std::chrono::milliseconds;

// How long a refused client may go on sending before its connection is closed, so that it reads the answer
// instead of a reset.
constexpr milliseconds kLinger(2000);
// How long the worker of the quick paths waits for a client to take its answer.
constexpr milliseconds kQuickWrite(1000);
// Once requests have left this many bytes behind, they are given back to the system.
constexpr size_t kMuchMemory = 4 << 20;
// Buffers of connections that wait for a request are not larger, and a request of this size is always
// received.
constexpr size_t kIdleBuffer = 64 << 10;

constexpr int kArenas = 4;  // of the C library's memory

// The answer when there is no memory to make one. It ends with the connection.
constexpr std::string_view kNoMemory =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    "Connection: close\r\n\r\n"
    R"({"error": {"message": "out of memory", "type": "server_error", "param": null, "code": null}})";

thread_local Exchange t_exchange;

std::string address_of(const sockaddr_storage& address) {
    char text[INET6_ADDRSTRLEN] = "?";
    if (address.ss_family == AF_INET) {
        const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
        inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
        return fmt::format("{}:{}", text, ntohs(v4.sin_port));
    }
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    return fmt::format("[{}]:{}", text, ntohs(v6.sin6_port));
}

bool is_loopback(const sockaddr_storage& address) {
    if (address.ss_family != AF_INET)
        return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
    const uint32_t v4 = ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr);
    return v4 >> 24 == IN_LOOPBACKNET;
}

const char* reason(int status) {
    switch (status) {
        case 400: return "Bad Request";
        case 408: return "Request Timeout";
        case 411: return "Length Required";
        case 413: return "Payload Too Large";
        case 431: return "Request Header Fields Too Large";
        default: return "Service Unavailable";
    }
}

// Raises the limit of open files as far as the system allows.
size_t raise_file_limit(size_t wanted) {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
    constexpr rlim_t kOthers = 64;
    const rlim_t room = limit.rlim_cur > 2 * kOthers ? limit.rlim_cur - kOthers : kOthers;
    return static_cast<size_t>(std::min<rlim_t>(wanted, room));
}

}  // namespace

struct HttpServer::Connection {
    Connection(int socket, const Tls* tls) : wire(socket, tls) {}

    Wire wire;
    std::string client;
    std::string received;
    size_t buffered = 0;      // bytes that count in buffered_
    ChunkedBody chunks;       // of the request that is coming in
    Clock::time_point since;  // of the request's first byte, of its last one, or of the last request's end
    bool continued = false;   // "100 Continue" has been sent
    bool refused = false;     // input is discarded until the client has closed

    int socket() const { return wire.socket(); }
    // As far as the client takes it at once.
    void say(std::string_view text) { wire.send(text.data(), text.size()); }
};

HttpServer::HttpServer(HttpOptions options)
    : options_(std::move(options)), tls_(options_.tls ? std::make_unique<Tls>(*options_.tls) : nullptr) {
    set_keep_alive_timeout(options_.idle_timeout.count() / 1000);
    set_keep_alive_max_count(1000000);
    set_payload_max_length(options_.most_body);
    set_logger([](const httplib::Request& request, const httplib::Response& response) {
        t_exchange.method = request.method;
        t_exchange.path = request.path;
        t_exchange.status = response.status;
        if (response.get_header_value("Connection") == "close") t_exchange.close = true;
    });
    set_post_routing_handler([this](const httplib::Request&, httplib::Response& response) {
        if ((draining_ || t_exchange.close) && !response.has_header("Connection"))
            response.set_header("Connection", "close");
    });
    set_error_handler([this](const httplib::Request&, httplib::Response& response) {
        if (response.body.empty() && error_text)
            response.set_content(error_text(response.status, ""), "application/json");
    });
}

HttpServer::~HttpServer() { stop(); }

Exchange& HttpServer::exchange() { return t_exchange; }

bool HttpServer::client_gone() {
    if (!t_exchange.client_gone) t_exchange.client_gone = refold::client_gone(t_exchange.socket);
    return t_exchange.client_gone;
}

void HttpServer::bind() {
    options_.connections = raise_file_limit(options_.connections);
    listener_ = options_.listener;
    if (listener_ < 0) listen_on_address();
    fcntl(listener_, F_SETFL, fcntl(listener_, F_GETFL) | O_NONBLOCK);
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                               : reinterpret_cast<sockaddr_in6&>(address).sin6_port);
    on_loopback_ = is_loopback(address);
    if (options_.listener >= 0) {
        const std::string name = address_of(address);
        options_.host = name.substr(0, name.rfind(':'));
        std::erase_if(options_.host, [](char c) { return c == '[' || c == ']'; });
    }
    wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    svr_sock_ = listener_;  // cpp-httplib ends streams when this is unset
}

void HttpServer::listen_on_address() {
    constexpr int kFlags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = kFlags;
    addrinfo* found = nullptr;
    const std::string port = std::to_string(options_.port);
    if (const int code = getaddrinfo(options_.host.c_str(), port.c_str(), &hints, &found); code != 0)
        fail(ErrorCode::io, "serve", "cannot find the address of '{}': {} - give an address by --host",
             options_.host, gai_strerror(code));
    freeaddrinfo(found);
    // cpp-httplib ends streamed responses unless it has bound a socket itself. It tries the addresses in turn
    // and closes the sockets that it could not bind.
    set_socket_options([this](int socket) {
        const int yes = 1;
        setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        listener_ = socket;
    });
    errno = 0;
    if (!bind_to_port(options_.host, options_.port, kFlags) || ::listen(listener_, 1024) != 0) {
        listener_ = -1;
        fail(ErrorCode::io, "serve", "cannot listen on {} port {}: {} - choose another --host or --port",
             options_.host, options_.port, strerror(errno));
    }
}

void HttpServer::start() {
    // By default each of many threads keeps freed memory of its own, which never fits the others' needs.
    mallopt(M_ARENA_MAX, kArenas);
    // OpenSSL writes to clients that have left. The threads inherit this.
    sigset_t broken_pipe{}, before{};
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_pipe, &before);
    collector_ = std::thread([this] { collect(); });
    for (size_t i = 0; i < options_.workers; ++i) threads_.emplace_back([this] { work(ready_); });
    if (!options_.quick_paths.empty()) threads_.emplace_back([this] { work(quick_); });
    if (tls_) threads_.emplace_back([this] { greet(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void HttpServer::wake() const {
    const uint64_t one = 1;
    static_cast<void>(!::write(wake_, &one, sizeof one));
}

bool HttpServer::drain(milliseconds most) {
    if (!collector_.joinable()) return true;
    draining_ = true;
    wake();
    std::unique_lock lock(mutex_);
    return all_answered_.wait_for(
        lock, most, [&] { return ready_.waiting.empty() && quick_.waiting.empty() && answering_.empty(); });
}

void HttpServer::cut_off() {
    const std::lock_guard lock(mutex_);
    for (const auto& [socket, connection] : answering_) shutdown(socket, SHUT_RDWR);
}

void HttpServer::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = draining_ = true;
    }
    cut_off();
    for (Queue* queue : {&ready_, &quick_, &greeting_}) queue->changed_or_stop.notify_all();
    if (collector_.joinable()) {
        wake();
        collector_.join();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    for (Queue* queue : {&ready_, &quick_, &greeting_}) queue->waiting.clear();
    returned_.clear();
    for (int* descriptor : {&listener_, &wake_}) {
        if (*descriptor >= 0) close(*descriptor);
        *descriptor = -1;
    }
}

void HttpServer::accept_all() {
    for (;;) {
        sockaddr_storage address{};
        socklen_t size = sizeof address;
        const int socket =
            accept4(listener_, reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (socket < 0) {
            // No descriptor is free until a connection ends.
            if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(milliseconds(5));
            if (errno == ECONNABORTED || errno == EINTR) continue;
            return;
        }
        const int yes = 1;
        setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        auto connection = std::make_unique<Connection>(socket, tls_.get());
        connection->client = address_of(address);
        connection->since = Clock::now();
        recount(*connection);
        ++open_;
        if (too_many()) make_room();
        if (too_many() || connection->wire.failed()) refuse(*connection, 503, "too many connections");
        waiting_[socket] = std::move(connection);
    }
}

bool HttpServer::too_many() const {
    return static_cast<size_t>(open_) > options_.connections || buffered_ > options_.most_buffered;
}

// Connections that say nothing, or send without end, must not keep others out.
void HttpServer::make_room() {
    const bool memory = buffered_ > options_.most_buffered;
    std::vector<std::tuple<bool, Clock::time_point, int>> order;
    order.reserve(waiting_.size());
    for (const auto& [socket, connection] : waiting_) {
        const bool sends = !connection->refused && !connection->received.empty();
        order.emplace_back(sends != memory, connection->since, socket);
    }
    // Some more than needed, as each search looks at all of them.
    const size_t most = std::min(order.size(), 1 + order.size() / 64);
    std::ranges::partial_sort(order, order.begin() + static_cast<std::ptrdiff_t>(most));
    for (size_t i = 0; i < most; ++i) drop(std::get<int>(order[i]));
}

void HttpServer::drop(int socket) {
    buffered_ -= waiting_[socket]->buffered;
    freed_ += waiting_[socket]->buffered;
    waiting_.erase(socket);
    --open_;
}

void HttpServer::refuse(Connection& connection, int status, const std::string& problem) {
    const std::string body = error_text ? error_text(status, problem) : problem;
    const std::string text = fmt::format(
        "HTTP/1.1 {} {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
        "Connection: close\r\n\r\n{}",
        status, reason(status), body.size(), body);
    connection.say(text);
    connection.wire.end();
    connection.received.clear();
    connection.received.shrink_to_fit();
    freed_ += connection.buffered;
    recount(connection);
    connection.refused = true;
    connection.since = Clock::now();
    if (on_exchange) {
        Exchange exchange;
        exchange.client = connection.client;
        exchange.status = status;
        exchange.start = connection.since;
        on_exchange(exchange);
    }
}

bool HttpServer::receive(Connection& connection) {
    char buffer[64 << 10];
    for (int i = 0; i < 16; ++i) {  // then other connections are served
        const ssize_t count = connection.wire.receive(buffer, sizeof buffer);
        if (count <= 0) return count == Wire::kLater;
        if (connection.refused) continue;
        const auto size = static_cast<size_t>(count);
        if (connection.received.empty()) connection.since = Clock::now();
        const auto too_much = [&] { refuse(connection, 503, "too much is being received at present"); };
        // A short request is received even then: those who send long ones must not keep it out.
        if (buffered_ + size > options_.most_buffered && connection.received.size() + size > kIdleBuffer) {
            too_much();
            continue;
        }
        try {
            connection.received.append(buffer, size);
        } catch (const std::bad_alloc&) {
            too_much();
            continue;
        }
        recount(connection);
    }
    return true;
}

void HttpServer::recount(Connection& connection) {
    const size_t bytes = connection.received.size() + connection.wire.memory();
    buffered_ += bytes - connection.buffered;
    connection.buffered = bytes;
}

bool HttpServer::join_chunks(Connection& c, const HttpHead& head) {
    const auto state = c.chunks.decode(c.received, head.bytes, options_.most_body);
    recount(c);
    if (state == ChunkedBody::State::incomplete) return false;
    if (state == ChunkedBody::State::too_large) refuse(c, 413, "the request's body is too large");
    if (state == ChunkedBody::State::malformed) refuse(c, 400, "a malformed chunk of the body");
    if (state != ChunkedBody::State::complete) return false;
    c.received.replace(head.coding_begin, head.coding_end - head.coding_begin,
                       fmt::format("Content-Length: {}\r\n", c.chunks.size()));
    recount(c);
    c.chunks = {};
    return true;
}

// Returns whether the connection stays here; else it has moved to the workers.
bool HttpServer::examine(ConnectionPtr& connection) {
    Connection& c = *connection;
    if (c.refused || c.received.empty()) return true;
    // The head's limit bounds this search, however often it starts over.
    const std::string_view front = std::string_view(c.received).substr(0, options_.most_head);
    const auto head = scan_head(front, options_.most_body);
    if (!head) {
        if (c.received.size() >= options_.most_head) refuse(c, 431, "the request's headers are too large");
        return true;
    }
    if (head->status != 0) {
        refuse(c, head->status, head->problem);
        return true;
    }
    Queue& queue =
        std::ranges::find(options_.quick_paths, head->path) == options_.quick_paths.end() ? ready_ : quick_;
    const bool complete =
        head->chunked ? join_chunks(c, *head) : c.received.size() >= head->bytes + head->body;
    if (!complete) {
        if (head->expects_continue && !c.refused && !c.continued) {
            constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
            c.say(kContinue);
            c.continued = true;
        }
        return true;
    }
    c.since = Clock::now();
    hand_over(std::move(connection), queue);
    return false;
}

void HttpServer::hand_over(ConnectionPtr connection, Queue& queue) {
    {
        const std::lock_guard lock(mutex_);
        queue.waiting.push_back(std::move(connection));
    }
    queue.changed_or_stop.notify_one();
}

HttpServer::ConnectionPtr HttpServer::take(Queue& queue, bool answers) {
    std::unique_lock lock(mutex_);
    queue.changed_or_stop.wait(lock, [&] { return stopping_ || !queue.waiting.empty(); });
    if (stopping_) return nullptr;
    ConnectionPtr connection = std::move(queue.waiting.front());
    queue.waiting.pop_front();
    if (answers) answering_[connection->socket()] = connection.get();
    return connection;
}

void HttpServer::give_back(ConnectionPtr connection) {
    {
        const std::lock_guard lock(mutex_);
        answering_.erase(connection->socket());
        returned_.push_back(std::move(connection));
    }
    all_answered_.notify_all();
    wake();
}

bool HttpServer::expired(Connection& connection) {
    const auto age = Clock::now() - connection.since;
    if (connection.refused) return age > kLinger;
    if (connection.wire.shaking_hands()) return age > options_.read_timeout;
    if (connection.received.empty()) return age > options_.idle_timeout;
    if (age > options_.read_timeout) refuse(connection, 408, "the request did not come in time");
    return false;
}

void HttpServer::collect() {
    yield_to_steps();
    std::vector<pollfd> states;
    Clock::time_point swept = Clock::now();
    while (!stopping_) {
        states.clear();
        states.push_back({wake_, POLLIN, 0});
        if (!draining_) states.push_back({listener_, POLLIN, 0});
        for (const auto& [socket, connection] : waiting_)
            states.push_back({socket, connection->wire.events(), 0});
        ::poll(states.data(), states.size(), 200);

        std::vector<int> look;
        bool arrivals = false;
        for (const pollfd& state : states) {
            if (state.revents == 0) continue;
            if (state.fd == wake_) {
                uint64_t count = 0;
                static_cast<void>(!::read(wake_, &count, sizeof count));
            } else if (state.fd == listener_) {
                arrivals = true;
            } else if (ConnectionPtr& connection = waiting_[state.fd]; connection->wire.shaking_hands()) {
                hand_over(std::move(connection), greeting_);
                waiting_.erase(state.fd);
            } else if (receive(*connection)) {
                look.push_back(state.fd);
            } else {
                drop(state.fd);
            }
        }
        std::vector<ConnectionPtr> returned;
        {
            const std::lock_guard lock(mutex_);
            returned.swap(returned_);
        }
        for (ConnectionPtr& connection : returned) {
            const int socket = connection->socket();
            recount(*connection);
            waiting_[socket] = std::move(connection);
            look.push_back(socket);
        }
        for (const int socket : look) {
            if (!examine(waiting_[socket])) waiting_.erase(socket);
        }
        if (arrivals) accept_all();
        const bool all = draining_;
        if (!all && Clock::now() - swept < milliseconds(100)) continue;
        swept = Clock::now();
        std::vector<int> ended;
        for (const auto& [socket, connection] : waiting_) {
            const bool idle = connection->received.empty();
            if (all && !idle) refuse(*connection, 503, "the server is shutting down");
            if ((all && idle && !connection->refused) || expired(*connection)) ended.push_back(socket);
        }
        for (const int socket : ended) drop(socket);
        if (freed_ > kMuchMemory) {
            freed_ = 0;
            malloc_trim(0);
        }
        if (draining_ && listener_ >= 0) {  // from here on the system refuses connections
            close(listener_);
            listener_ = -1;
        }
    }
    waiting_.clear();
}

void HttpServer::work(Queue& queue) {
    yield_to_steps();
    const milliseconds write_timeout =
        &queue == &quick_ ? std::min(kQuickWrite, options_.write_timeout) : options_.write_timeout;
    while (ConnectionPtr connection = take(queue, true)) {
        bool again = false;
        try {
            again = answer(*connection, write_timeout);
        } catch (const std::exception&) {
            connection->say(kNoMemory);
            connection->received.clear();
        }
        t_exchange.holds.reset();
        t_exchange.turn.reset();
        if (connection->received.capacity() > kIdleBuffer) connection->received.shrink_to_fit();
        freed_ += connection->buffered + t_exchange.memory;
        if (!again) connection->wire.end();
        connection->refused = !again;
        connection->since = Clock::now();
        give_back(std::move(connection));
    }
}

void HttpServer::greet() {
    yield_to_steps();
    while (ConnectionPtr connection = take(greeting_, false)) {
        connection->wire.shake_hands();
        if (connection->wire.failed()) {
            connection->wire.end();
            connection->refused = true;
            connection->since = Clock::now();
        }
        give_back(std::move(connection));
    }
}

bool HttpServer::answer(Connection& connection, milliseconds write_timeout) {
    t_exchange = {};
    t_exchange.socket = connection.socket();
    t_exchange.client = connection.client;
    t_exchange.start = connection.since;
    const std::string_view received = connection.received;
    const auto head = scan_head(received, options_.most_body);
    const size_t size = head->bytes + head->body;
    ExchangeStream stream(connection.wire, received.substr(0, size), write_timeout);
    bool closed = false;
    const bool written = process_request(stream, draining_, closed, [](httplib::Request& request) {
        request.headers.erase("Expect");           // answered by examine()
        request.headers.erase("Accept-Encoding");  // compressing costs more than sending
        request.ranges.clear();
    });
    if (stream.failed()) t_exchange.client_gone = true;
    if (on_exchange) on_exchange(t_exchange);
    const bool again = written && !closed && !t_exchange.close && !t_exchange.client_gone && !draining_;
    connection.received.erase(0, size);
    connection.continued = false;
    if (!again) connection.received.clear();
    return again;
}

}  // namespace refold
