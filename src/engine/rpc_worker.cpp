#include "engine/rpc_worker.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ggml-backend.h>
#include <ggml-rpc.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/interrupt.h"
#include "engine/worker/processes.h"
#include "io/ggml_log.h"

namespace refold {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kGreeting(5000);
constexpr const char* kModule = "RPC";

template <class Function>
Function* function_of_module(const char* name) {
    module_problems();  // loads the modules
    ggml_backend_reg_t module = ggml_backend_reg_by_name(kModule);
    void* address = module == nullptr ? nullptr : ggml_backend_reg_get_proc_address(module, name);
    if (address == nullptr)
        fail(ErrorCode::unsupported, "engine",
             "workers need ggml's module libggml-rpc.so as scripts/setup builds it, which is {}",
             module == nullptr ? "not here" : "another one here");
    return reinterpret_cast<Function*>(address);
}

std::string host_text(in_addr host) {
    std::array<char, INET_ADDRSTRLEN> text{};
    inet_ntop(AF_INET, &host, text.data(), text.size());
    return text.data();
}

struct Endpoint {
    std::string given;  // "HOST:PORT"
    in_addr host{};
    uint16_t port = 0;

    // With the number of the host, which is looked up once.
    std::string numeric() const { return fmt::format("{}:{}", host_text(host), port); }
    sockaddr_in socket_address() const {
        sockaddr_in out{};
        out.sin_family = AF_INET;
        out.sin_addr = host;
        out.sin_port = htons(port);
        return out;
    }
};

bool is_private(in_addr host) {
    const uint32_t address = ntohl(host.s_addr);
    const auto within = [&](uint32_t network, int bits) { return (address ^ network) >> (32 - bits) == 0; };
    return within(0x7F000000, 8) || within(0x0A000000, 8) || within(0xAC100000, 12) ||
           within(0xC0A80000, 16) || within(0xA9FE0000, 16);
}

Endpoint parse(const std::string& address, bool anywhere) {
    const size_t colon = address.rfind(':');
    if (address.find(':') != colon)
        fail(ErrorCode::usage, "engine",
             "a worker is HOST:PORT, got '{}' - ggml's workers have names and IPv4 addresses, no IPv6",
             address);
    Endpoint out{.given = address};
    const char* end = address.data() + address.size();
    const bool has_port = colon != std::string::npos && colon > 0 &&
                          std::from_chars(address.data() + colon + 1, end, out.port) ==
                              std::from_chars_result{end, std::errc()};
    if (!has_port || out.port == 0)
        fail(ErrorCode::usage, "engine", "a worker is HOST:PORT, got '{}'", address);
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET;  // ggml knows no other
    hints.ai_socktype = SOCK_STREAM;
    if (const int code = getaddrinfo(address.substr(0, colon).c_str(), nullptr, &hints, &found); code != 0)
        fail(ErrorCode::io, "engine", "worker {}: cannot find the IPv4 address of this host: {}", address,
             gai_strerror(code));
    sockaddr_in first{};
    std::memcpy(&first, found->ai_addr, sizeof first);
    freeaddrinfo(found);
    out.host = first.sin_addr;
    if (!anywhere && !is_private(out.host))
        fail(ErrorCode::usage, "engine",
             "worker {}: {} is neither the loopback nor in a private network, and the connection has no "
             "encryption and no authentication - use a tunnel, or --rpc-anywhere",
             address, host_text(out.host));
    return out;
}

class Socket {
public:
    explicit Socket(int type = 0) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | type, 0)) {}
    ~Socket() {
        if (fd_ >= 0) close(fd_);
    }
    Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Socket& operator=(Socket&&) = delete;
    int get() const { return fd_; }
    // Blocking from now on, for so long at a time; the caller's to close.
    int release(std::chrono::seconds most) {
        fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) & ~O_NONBLOCK);
        const timeval limit{static_cast<time_t>(most.count()), 0};
        for (const int direction : {SO_RCVTIMEO, SO_SNDTIMEO})
            setsockopt(fd_, SOL_SOCKET, direction, &limit, sizeof limit);
        return std::exchange(fd_, -1);
    }
    // Returns false kGreeting after the socket was made. Throws Error(interrupted) when a signal asks to
    // stop.
    bool wait(short events) const {
        for (;;) {
            check_interrupt();
            pollfd wanted{fd_, events, 0};
            const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now());
            const int ready = poll(&wanted, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
            if (ready >= 0 || errno != EINTR) return ready == 1;
        }
    }

private:
    int fd_;
    Clock::time_point end_ = Clock::now() + kGreeting;
};

[[noreturn]] void refuse(const Endpoint& worker, const std::string& why) {
    fail(ErrorCode::io, "engine", "worker {}: {}", worker.given, why);
}

void connect(const Socket& socket, const Endpoint& worker) {
    const sockaddr_in to = worker.socket_address();
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) return;
    int error = errno;
    if (error == EINPROGRESS) {
        if (!socket.wait(POLLOUT)) refuse(worker, "nothing answers there");
        socklen_t size = sizeof error;
        getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error != 0) refuse(worker, fmt::format("nothing answers there: {}", strerror(error)));
}

// Reads all of `out`; false where the other side has closed the connection.
bool receive(const Socket& socket, const Endpoint& worker, std::span<unsigned char> out) {
    while (!out.empty()) {
        if (!socket.wait(POLLIN)) refuse(worker, "does not answer - is it no worker?");
        const ssize_t count = recv(socket.get(), out.data(), out.size(), 0);
        if (count <= 0) return false;
        out = out.subspan(static_cast<size_t>(count));
    }
    return true;
}

// A connection to a worker of this version. ggml's client would wait for minutes where none answers.
Socket greet(const Endpoint& worker) {
    Socket socket(SOCK_NONBLOCK);
    connect(socket, worker);
    constexpr unsigned char kHello = 14;
    constexpr size_t kNumber = sizeof(uint64_t), kCapabilities = 24, kAnswer = 4 + kCapabilities;
    std::array<unsigned char, 1 + kNumber + kCapabilities> request{kHello, kCapabilities};
    std::array<unsigned char, kNumber + kAnswer> answer{};
    const ssize_t sent = send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
    const bool answered = sent == static_cast<ssize_t>(request.size()) && receive(socket, worker, answer);
    uint64_t size = 0;
    std::memcpy(&size, answer.data(), sizeof size);
    if (!answered || size != kAnswer)
        refuse(worker, fmt::format("is no worker, or one of another version (expected ggml's protocol "
                                   "{}.{}), or it has too many clients",
                                   RPC_PROTO_MAJOR_VERSION, RPC_PROTO_MINOR_VERSION));
    const int major = answer[kNumber], minor = answer[kNumber + 1];
    if (major != RPC_PROTO_MAJOR_VERSION || minor > RPC_PROTO_MINOR_VERSION)
        refuse(worker, fmt::format("speaks ggml's protocol {}.{}, expected {}.{} - use the same version of "
                                   "refold there",
                                   major, minor, RPC_PROTO_MAJOR_VERSION, RPC_PROTO_MINOR_VERSION));
    return socket;
}

// This process has one connection to a worker, and may have it already.
std::shared_ptr<void> connection_to(const Endpoint& worker, std::chrono::seconds patience) {
    auto* const keep = function_of_module<void*(const char*, int)>("ggml_backend_rpc_keep_connection");
    auto* const release = function_of_module<void(void*)>("ggml_backend_rpc_release_connection");
    const std::string endpoint = worker.numeric();
    void* kept = keep(endpoint.c_str(), -1);
    if (kept == nullptr) kept = keep(endpoint.c_str(), greet(worker).release(patience));
    return {kept, release};
}

}  // namespace

std::vector<Device> connect_worker(const std::string& address, const WorkerAccess& access) {
    const Endpoint worker = parse(address, access.anywhere);
    const std::shared_ptr<void> connection = connection_to(worker, access.patience);
    ggml_backend_reg_t found = function_of_module<decltype(ggml_backend_rpc_add_server)>(
        "ggml_backend_rpc_add_server")(worker.numeric().c_str());
    if (found == nullptr) refuse(worker, "the connection was lost");
    std::vector<Device> out;
    for (size_t i = 0; i < ggml_backend_reg_dev_count(found); ++i) {
        Device device;
        device.name = fmt::format("{}{}{}", kWorker, address, i == 0 ? "" : fmt::format("/{}", i));
        device.module = kModule;
        device.handle = ggml_backend_reg_dev_get(found, i);
        device.connection = connection;
        device.description = "a worker's device " + std::to_string(i);
        size_t free = 0, total = 0;
        ggml_backend_dev_memory(device.handle, &free, &total);
        device.memory = total;
        device.free = free;
        out.push_back(std::move(device));
    }
    return out;
}

bool has_lost_worker(ggml_backend_t backend) {
    static auto* const has_failed = function_of_module<bool(ggml_backend_t)>("ggml_backend_rpc_has_failed");
    return has_failed(backend);
}

void run_worker(const std::string& address, bool anywhere, const std::string& devices, int threads) {
    const Endpoint here = parse(address, anywhere);
    const Socket socket(SOCK_NONBLOCK);
    const int yes = 1;
    setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    const sockaddr_in at = here.socket_address();
    if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
        listen(socket.get(), SOMAXCONN) != 0)
        fail(ErrorCode::io, "engine", "cannot listen on {}: {}", address, strerror(errno));
    rpc::serve_clients(socket.get(), {address, devices, threads});
}

}  // namespace refold
