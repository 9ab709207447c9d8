// An HTTP client that can also misbehave.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace refold {

struct HttpReply {
    int status = 0;                              // 0: the connection ended without one
    std::map<std::string, std::string> headers;  // names in lower case
    std::string body;
    bool complete = false;  // the whole Content-Length, or all chunks and their end
    nlohmann::json json() const {
        nlohmann::json parsed = nlohmann::json::parse(body, nullptr, false);
        EXPECT_FALSE(parsed.is_discarded()) << status << ": " << body;
        return parsed;
    }
};

inline std::string post_text(const std::string& path, const std::string& body,
                             const std::string& headers = "") {
    return "POST " + path +
           " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body;
}

class HttpClient {
public:
    // Long enough for a busy machine and the sanitizers: what hangs is all that it has to tell.
    static constexpr std::chrono::milliseconds kPatience{120'000};

    explicit HttpClient(int port, int receive_buffer = 0) {
        socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (receive_buffer > 0)
            setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(static_cast<uint16_t>(port));
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    }
    ~HttpClient() { leave(); }
    HttpClient(HttpClient&& other) noexcept
        : socket_(std::exchange(other.socket_, -1)),
          connected_(other.connected_),
          received_(std::move(other.received_)) {}
    HttpClient& operator=(HttpClient&&) = delete;

    bool connected() const { return connected_; }
    int socket() const { return socket_; }
    void send(std::string_view text) const {
        while (!text.empty()) {
            const ssize_t sent = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
            if (sent <= 0) return;  // refused while sending: the reply has the reason
            text.remove_prefix(static_cast<size_t>(sent));
        }
    }
    void leave() {
        if (socket_ >= 0) close(socket_);
        socket_ = -1;
    }
    HttpReply get(const std::string& path, const std::string& headers = "") {
        send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
        return receive();
    }
    HttpReply post(const std::string& path, const std::string& body, const std::string& headers = "") {
        send(post_text(path, body, headers));
        return receive();
    }

    // Reads until `text` arrives; false when the connection ends or nothing more arrives in time.
    bool wait_for(std::string_view text, std::chrono::milliseconds patience = kPatience) {
        while (received_.find(text) == std::string::npos)
            if (!more(patience)) return false;
        return true;
    }
    // True when the server has closed the connection and everything was read.
    bool at_end() {
        while (more()) {
        }
        return ended_;
    }

    HttpReply receive() {
        HttpReply reply;
        if (!wait_for("\r\n\r\n")) return reply;
        const size_t end = received_.find("\r\n\r\n");
        size_t at = received_.find("\r\n") + 2;
        reply.status = std::stoi(received_.substr(9, 3));
        while (at < end + 2) {
            const size_t stop = received_.find("\r\n", at), colon = received_.find(':', at);
            std::string name = received_.substr(at, colon - at);
            std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
            reply.headers[name] = received_.substr(colon + 2, stop - colon - 2);
            at = stop + 2;
        }
        received_.erase(0, end + 4);
        if (reply.status == 100) return receive();
        if (reply.headers.contains("content-length")) {
            const size_t length = std::stoul(reply.headers["content-length"]);
            while (received_.size() < length && more()) {
            }
            reply.complete = received_.size() >= length;
            reply.body = received_.substr(0, length);
            received_.erase(0, length);
        } else if (reply.headers.contains("transfer-encoding")) {
            reply.complete = receive_chunks(reply.body);
        } else {
            reply.complete = at_end();
            reply.body = std::exchange(received_, {});
        }
        return reply;
    }

private:
    bool receive_chunks(std::string& body) {
        for (;;) {
            size_t end;
            while ((end = received_.find("\r\n")) == std::string::npos)
                if (!more()) return false;
            const size_t size = std::stoul(received_.substr(0, end), nullptr, 16);
            while (received_.size() < end + 2 + size + 2)
                if (!more()) return false;
            body += received_.substr(end + 2, size);
            received_.erase(0, end + 2 + size + 2);
            if (size == 0) return true;
        }
    }
    bool more(std::chrono::milliseconds patience = kPatience) {
        pollfd state{socket_, POLLIN, 0};
        if (poll(&state, 1, static_cast<int>(patience.count())) <= 0) return false;
        char buffer[16384];
        const ssize_t count = recv(socket_, buffer, sizeof buffer, 0);
        ended_ = count <= 0;
        if (count > 0) received_.append(buffer, static_cast<size_t>(count));
        return count > 0;
    }

    int socket_ = -1;
    bool connected_ = false, ended_ = false;
    std::string received_;
};

// The events of a stream; "[DONE]" becomes a JSON string.
inline std::vector<nlohmann::json> events_of(const std::string& body) {
    std::vector<nlohmann::json> events;
    for (size_t at = 0; at < body.size();) {
        const size_t end = body.find("\n\n", at);
        const std::string event = body.substr(at, end - at);
        EXPECT_TRUE(event.starts_with("data: ")) << event;
        const std::string text = event.substr(6);
        events.push_back(text == "[DONE]" ? nlohmann::json(text) : nlohmann::json::parse(text));
        if (end == std::string::npos) break;
        at = end + 2;
    }
    return events;
}

}  // namespace refold
