// The bytes of one client of a worker.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "engine/worker/protocol.h"

namespace refold::rpc {

// Throws Error(io) when the client leaves in the middle of a message, or takes longer than it may.
class Stream {
public:
    virtual ~Stream() = default;
    // The command of the next message, which may take for ever; nothing: the client has left.
    virtual std::optional<Command> next() = 0;
    // What is read and written from now on are so many bytes of a message or an answer.
    virtual void begin(uint64_t bytes) = 0;
    virtual void read(std::span<std::byte> out) = 0;
    virtual void write(std::span<const std::byte> bytes) = 0;
    // Whether the client has closed the connection, so that nobody waits for an answer.
    virtual bool has_left() = 0;
};

// How long the bytes of a message may take: `start` and the time at the slowest rate.
struct MessageTime {
    std::chrono::milliseconds start{30000};
    uint64_t least_rate = 64 << 10;  // bytes per second

    std::chrono::milliseconds of(uint64_t bytes) const {
        return start + std::chrono::milliseconds(bytes / least_rate * 1000);
    }
};

// A connected socket, which is closed at the end.
class SocketStream : public Stream {
public:
    explicit SocketStream(int socket, MessageTime time = {});
    ~SocketStream() override;
    SocketStream(const SocketStream&) = delete;
    SocketStream& operator=(const SocketStream&) = delete;

    std::optional<Command> next() override;
    void begin(uint64_t bytes) override { end_ = Clock::now() + time_.of(bytes); }
    void read(std::span<std::byte> out) override;
    void write(std::span<const std::byte> bytes) override;
    bool has_left() override;

private:
    using Clock = std::chrono::steady_clock;
    void wait(short events, const char* what) const;

    const int socket_;
    const MessageTime time_;
    Clock::time_point end_{};
};

}  // namespace refold::rpc
