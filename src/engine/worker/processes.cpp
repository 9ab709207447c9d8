#include "engine/worker/processes.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <vector>

#include "core/error.h"
#include "engine/devices.h"
#include "engine/worker/board.h"
#include "engine/worker/server.h"

namespace refold::rpc {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Connections that have not greeted yet, and how long they may take for it.
constexpr size_t kMostWaiting = 64;
constexpr milliseconds kGreeting(5000);
// A client gives its place to another one if it has been silent for so long and holds nothing; with memory,
// such as a server's between two requests, only after the longer time.
constexpr int64_t kSilent = 1000, kSilentWithMemory = 60000;

void say(const std::string& line) {
    std::fprintf(stderr, "refold worker: %s\n", line.c_str());
    std::fflush(stderr);
}

// Only what a client's process has to say in ggml's place, which would write a backtrace.
std::string g_client;
void end_at_once(const char* message) {
    std::fprintf(stderr, "refold worker: %s: %s\n", g_client.c_str(), message);
    _exit(1);
}

// Ends with the process that waits for clients.
void follow_parent(pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
}

std::string text_of(const sockaddr_in& peer) {
    std::array<char, INET_ADDRSTRLEN> host{};
    inet_ntop(AF_INET, &peer.sin_addr, host.data(), host.size());
    return fmt::format("client {}:{}", host.data(), ntohs(peer.sin_port));
}

void set_options(int socket) {
    const auto set = [&](int level, int option, int value) {
        setsockopt(socket, level, option, &value, sizeof value);
    };
    set(SOL_SOCKET, SO_RCVLOWAT, kGreetingBytes);  // nothing else needs to wake this process
    set(IPPROTO_TCP, TCP_NODELAY, 1);
    // A client that vanished without a word is noticed after half a minute.
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, 15);
    set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set(IPPROTO_TCP, TCP_KEEPCNT, 3);
    set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30000);
}

struct Waiting {
    int socket = -1;
    std::string name;
    Clock::time_point end;
};

// The devices of a client's process.
std::vector<Device> g_devices;
uint64_t free_now(size_t device) {
    size_t free = 0, total = 0;
    ggml_backend_dev_memory(g_devices[device].handle, &free, &total);
    return free_memory(g_devices[device].handle, free);
}

// A client whose last message is told to the board.
class WatchedStream : public SocketStream {
public:
    WatchedStream(int socket, Board::Client& client) : SocketStream(socket), client_(client) {}
    std::optional<Command> next() override {
        client_.heard = Board::milliseconds();
        auto command = SocketStream::next();
        client_.heard = Board::kNow;
        return command;
    }

private:
    Board::Client& client_;
};

class Worker {
public:
    Worker(int listening, const Lent& lent) : listening_(listening), lent_(lent), board_(Board::shared()) {
        if (board_ == nullptr) fail(ErrorCode::io, "worker", "no memory: {}", strerror(errno));
    }

    [[noreturn]] void run() {
        show_devices();
        std::signal(SIGCHLD, [](int) {});  // interrupts poll()
        for (;;) {
            wait();
            reap();
            accept_all();
            serve_ready();
        }
    }

private:
    // Another process looks for the devices, since a driver of a GPU does not survive fork().
    void show_devices() {
        std::array<int, 2> result{};
        if (pipe(result.data()) != 0) fail(ErrorCode::io, "worker", "pipe: {}", strerror(errno));
        std::fflush(nullptr);
        const pid_t parent = getpid(), child = fork();
        if (child < 0) fail(ErrorCode::io, "worker", "fork: {}", strerror(errno));
        if (child == 0) {
            follow_parent(parent);
            describe(result[1]);
        }
        close(result[1]);
        std::string problem;
        std::array<char, 4096> piece{};
        for (ssize_t count = 0; (count = read(result[0], piece.data(), piece.size())) != 0;)
            if (count > 0) problem.append(piece.data(), static_cast<size_t>(count));
        close(result[0]);
        int status = 0;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
        }
        if (!problem.empty()) throw Error(static_cast<ErrorCode>(problem[0]), problem.substr(1));
        if (status != 0) fail(ErrorCode::io, "worker", "looking for devices ended the process that did");
    }

    [[noreturn]] void describe(int result) {
        try {
            g_devices = find_devices(lent_.devices);
            if (g_devices.size() > kMostDevices)
                fail(ErrorCode::usage, "worker", "a worker lends at most {} devices", kMostDevices);
            std::printf("A worker waits for clients at %s and lends:\n", lent_.address.c_str());
            for (size_t i = 0; i < g_devices.size(); ++i) {
                board_->limit[i] = free_now(i);
                std::printf("  %s: %s (%llu MiB free)\n", g_devices[i].name.c_str(),
                            g_devices[i].description.c_str(),
                            static_cast<unsigned long long>(board_->limit[i] >> 20));
            }
            std::fflush(nullptr);
            _exit(0);
        } catch (const Error& error) {
            const std::string text = static_cast<char>(error.code()) + std::string(error.what());
            [[maybe_unused]] const ssize_t written = write(result, text.data(), text.size());
            _exit(1);
        }
    }

    void wait() {
        std::vector<pollfd> wanted = {{listening_, POLLIN, 0}};
        Clock::time_point first = Clock::time_point::max();
        for (const Waiting& client : waiting_) {
            wanted.push_back({client.socket, POLLIN, 0});
            first = std::min(first, client.end);
        }
        int64_t most = 1000;  // in case a process ended just before
        if (!waiting_.empty())
            most =
                std::clamp<int64_t>(std::chrono::ceil<milliseconds>(first - Clock::now()).count(), 0, most);
        poll(wanted.data(), wanted.size(), static_cast<int>(most));
    }

    void reap() {
        int status = 0;
        for (pid_t ended = 0; (ended = waitpid(-1, &status, WNOHANG)) > 0;) {
            const auto found = std::ranges::find(processes_, ended, &Process::id);
            if (found == processes_.end()) continue;
            if (WIFSIGNALED(status))
                say(fmt::format("{}: its process was ended by signal {} ({})", found->name, WTERMSIG(status),
                                strsignal(WTERMSIG(status))));
            leave(static_cast<size_t>(found - processes_.begin()));
        }
    }

    // What the client held is free again.
    void leave(size_t place) {
        board_->clear(place);
        processes_[place] = {};
    }

    void accept_all() {
        for (;;) {
            sockaddr_in peer{};
            socklen_t size = sizeof peer;
            const int socket =
                accept4(listening_, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (socket < 0) {
                // Without descriptors the next ones wait in the queue of the system.
                if (errno == EMFILE || errno == ENFILE) usleep(10000);
                return;
            }
            set_options(socket);
            if (waiting_.size() == kMostWaiting) drop(waiting_.begin());
            waiting_.push_back({socket, text_of(peer), Clock::now() + kGreeting});
        }
    }

    std::vector<Waiting>::iterator drop(std::vector<Waiting>::iterator client) {
        close(client->socket);
        return waiting_.erase(client);
    }

    // A process for each client that has greeted.
    void serve_ready() {
        for (auto client = waiting_.begin(); client != waiting_.end();) {
            std::array<std::byte, kGreetingBytes> greeting{};
            const ssize_t count =
                recv(client->socket, greeting.data(), greeting.size(), MSG_PEEK | MSG_DONTWAIT);
            const bool open =
                count > 0 || (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
            constexpr size_t kFirst = 1 + sizeof(uint64_t);
            const bool strange =
                count >= static_cast<ssize_t>(kFirst) && !is_greeting(std::span(greeting).first<kFirst>());
            if (!open || strange || Clock::now() >= client->end) {
                client = drop(client);
            } else if (count == static_cast<ssize_t>(kGreetingBytes)) {
                begin(*client);
                client = drop(client);
            } else {
                ++client;
            }
        }
    }

    void begin(const Waiting& client) {
        const auto place = find_place();
        if (!place) return say(client.name + ": refused, as there are as many clients as can be");
        std::fflush(nullptr);
        const pid_t parent = getpid(), child = fork();
        if (child < 0) return say(fmt::format("{}: fork: {}", client.name, strerror(errno)));
        if (child == 0) {
            follow_parent(parent);
            serve(client, *place);
        }
        processes_[*place] = {child, client.name};
    }

    [[noreturn]] void serve(const Waiting& client, size_t place) {
        g_client = client.name;
        close(listening_);
        for (const Waiting& other : waiting_)
            if (other.socket != client.socket) close(other.socket);
        std::signal(SIGCHLD, SIG_DFL);
        ggml_set_abort_callback(end_at_once);
        const int any = 1;
        setsockopt(client.socket, SOL_SOCKET, SO_RCVLOWAT, &any, sizeof any);
        int code = 1;
        try {
            WatchedStream stream(client.socket, board_->clients[place]);
            greet(stream);
            g_devices = find_devices(lent_.devices);
            BoardShare share(*board_, place, lent_.threads, free_now);
            Server(g_devices, lent_.threads, share).serve(stream);
            code = 0;
        } catch (const std::exception& error) {
            say(fmt::format("{}: {}", client.name, error.what()));
        }
        std::fflush(nullptr);
        _exit(code);
    }

    // A free one, or that of the client which has been silent for longest.
    std::optional<size_t> find_place() {
        const auto free = std::ranges::find(processes_, 0, &Process::id);
        if (free != processes_.end()) return free - processes_.begin();
        const int64_t now = Board::milliseconds();
        std::optional<size_t> out;
        int64_t longest = 0;
        for (size_t i = 0; i < kMostClients; ++i) {
            const Board::Client& client = board_->clients[i];
            const int64_t heard = client.heard;
            const bool holds = std::ranges::any_of(client.held, [](const auto& bytes) { return bytes != 0; });
            const int64_t beyond =
                heard == Board::kNow ? -1 : now - heard - (holds ? kSilentWithMemory : kSilent);
            if (beyond <= longest) continue;
            out = i;
            longest = beyond;
        }
        if (out) {
            const Process& evicted = processes_[*out];
            say(evicted.name + ": has been silent for long, and another client needs its place");
            kill(evicted.id, SIGKILL);
            while (waitpid(evicted.id, nullptr, 0) < 0 && errno == EINTR) {
            }
            leave(*out);
        }
        return out;
    }

    struct Process {
        pid_t id = 0;  // 0: none
        std::string name;
    };

    const int listening_;
    const Lent& lent_;
    Board* const board_;
    std::vector<Waiting> waiting_;
    std::array<Process, kMostClients> processes_;
};

}  // namespace

void serve_clients(int listening, const Lent& lent) { Worker(listening, lent).run(); }

}  // namespace refold::rpc
