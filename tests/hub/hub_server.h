// A hub on the loopback device: the two endpoints that downloads use, with any failure that a test asks for.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace refold {

inline std::string hex_digest(const EVP_MD* algorithm, const std::string& data) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    EVP_Digest(data.data(), data.size(), digest, &size, algorithm, nullptr);
    std::string out;
    for (unsigned int i = 0; i < size; ++i) {
        constexpr const char* kDigits = "0123456789abcdef";
        out += {kDigits[digest[i] >> 4], kDigits[digest[i] & 15]};
    }
    return out;
}

inline std::string git_sha1(const std::string& data) {
    return hex_digest(EVP_sha1(), "blob " + std::to_string(data.size()) + std::string(1, '\0') + data);
}

class HubServer {
public:
    struct Request {
        std::string method, path;  // path: decoded, without the query
        std::string query;         // as sent, without the "?"
        std::map<std::string, std::string> headers;
        std::string header(const std::string& name) const {
            const auto found = headers.find(name);
            return found == headers.end() ? "" : found->second;
        }
    };
    struct Reply {
        int status = 200;
        std::vector<std::pair<std::string, std::string>> headers{};
        std::string body{};
        size_t sent = std::string::npos;  // bytes of the body to send before the connection ends
        bool stall = false;               // keep the connection open and silent instead
    };
    struct File {
        std::string content;
        bool large;  // stored by its SHA-256, and served from `large_files_at` if set
        std::string etag() const { return large ? hex_digest(EVP_sha256(), content) : git_sha1(content); }
    };
    static constexpr const char* kRepo = "org/name";
    static constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

    HubServer() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof(address);
        EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
        EXPECT_EQ(listen(socket_, 16), 0);
        getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
        port_ = ntohs(address.sin_port);
        thread_ = std::thread([this] { accept_all(); });
    }
    ~HubServer() {
        shutdown(socket_, SHUT_RDWR);
        thread_.join();
        {
            const std::lock_guard guard(mutex_);
            for (const int connection : open_) shutdown(connection, SHUT_RDWR);
        }
        for (auto& thread : connections_) thread.join();
        close(socket_);
    }
    HubServer(const HubServer&) = delete;
    HubServer& operator=(const HubServer&) = delete;

    std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
    // Set these before the first request.
    std::map<std::string, File> files;
    std::map<std::string, std::string> revisions = {{"main", kCommit}};
    bool ranges = true;          // else a range request gets the whole file
    bool describes = true;       // the listing has sizes and hashes
    std::string large_files_at;  // URL of another server
    // Replaces the server's reply when it returns one. Called by one thread at a time.
    std::function<std::optional<Reply>(const Request&)> hook;

    std::vector<Request> requests() const {
        const std::lock_guard guard(mutex_);
        return requests_;
    }
    // Requests whose path ends with `end`.
    std::vector<Request> requests(const std::string& end) const {
        std::vector<Request> found = requests();
        std::erase_if(found, [&](const Request& r) { return !r.path.ends_with(end); });
        return found;
    }

    nlohmann::json listing() const {
        nlohmann::json siblings = nlohmann::json::array();
        for (const auto& [path, file] : files) {
            nlohmann::json entry = {{"rfilename", path}};
            if (describes) {
                entry["size"] = file.content.size();
                entry["blobId"] = file.large ? git_sha1("pointer to " + path) : file.etag();
                if (file.large) entry["lfs"] = {{"sha256", file.etag()}, {"size", file.content.size()}};
            }
            siblings.push_back(entry);
        }
        return {{"id", kRepo}, {"sha", kCommit}, {"siblings", siblings}};
    }
    // The reply to a request for a file.
    Reply file_reply(const Request& request, const File& file) const {
        Reply reply{.headers = {{"ETag", '"' + file.etag() + '"'}}};
        size_t begin = 0;
        const std::string range = request.header("range");
        if (ranges && range.starts_with("bytes=")) begin = std::stoul(range.substr(6));
        const std::string total = std::to_string(file.content.size());
        if (begin > 0 && begin >= file.content.size()) {
            return {.status = 416, .headers = {{"Content-Range", "bytes */" + total}}};
        }
        if (begin > 0) {
            reply.status = 206;
            reply.headers.emplace_back("Content-Range", "bytes " + std::to_string(begin) + "-" +
                                                            std::to_string(file.content.size() - 1) + "/" +
                                                            total);
        }
        reply.body = file.content.substr(begin);
        return reply;
    }

private:
    Reply answer(const Request& request) const {
        const std::string api = std::string("/api/models/") + kRepo + "/revision/";
        if (request.path.starts_with(api)) {
            const auto found = revisions.find(request.path.substr(api.size()));
            const bool is_known = found != revisions.end() || request.path.ends_with(kCommit);
            if (is_known) return {.body = listing().dump()};
            return {.status = 404, .headers = {{"X-Error-Code", "RevisionNotFound"}}};
        }
        const std::string resolve = std::string("/") + kRepo + "/resolve/" + kCommit + "/";
        if (!request.path.starts_with(resolve))
            return {.status = 404, .headers = {{"X-Error-Code", "RepoNotFound"}}};
        const auto found = files.find(request.path.substr(resolve.size()));
        if (found == files.end()) return {.status = 404, .headers = {{"X-Error-Code", "EntryNotFound"}}};
        const File& file = found->second;
        Reply reply = file_reply(request, file);
        if (file.large && !large_files_at.empty()) {
            reply = {.status = 302,
                     .headers = {{"Location", large_files_at + "/" + file.etag()},
                                 {"X-Linked-Etag", '"' + file.etag() + '"'},
                                 {"X-Linked-Size", std::to_string(file.content.size())}},
                     .body = "over there"};
        }
        reply.headers.emplace_back("X-Repo-Commit", kCommit);
        return reply;
    }

    void accept_all() {
        for (;;) {
            const int connection = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
            if (connection < 0) return;
            const std::lock_guard guard(mutex_);
            open_.push_back(connection);
            connections_.emplace_back([this, connection] {
                while (serve_one(connection)) {
                }
                const std::lock_guard closing(mutex_);
                open_.remove(connection);
                close(connection);
            });
        }
    }

    // Returns false when the connection ends.
    bool serve_one(int connection) {
        std::string head;
        for (char c = 0; !head.ends_with("\r\n\r\n");) {
            if (recv(connection, &c, 1, 0) != 1) return false;
            head += c;
        }
        const Request request = parse(head);
        std::optional<Reply> special;
        {
            const std::lock_guard guard(mutex_);
            requests_.push_back(request);
            if (hook) special = hook(request);
        }
        const Reply reply = special ? *special : answer(request);
        std::string out = "HTTP/1.1 " + std::to_string(reply.status) +
                          " Status\r\nContent-Length: " + std::to_string(reply.body.size()) + "\r\n";
        for (const auto& [name, value] : reply.headers) out += name + ": " + value + "\r\n";
        out += "\r\n";
        if (request.method != "HEAD") out += reply.body.substr(0, reply.sent);
        for (size_t at = 0; at < out.size();) {
            const ssize_t sent = send(connection, out.data() + at, out.size() - at, MSG_NOSIGNAL);
            if (sent <= 0) return false;
            at += static_cast<size_t>(sent);
        }
        char ignored = 0;
        if (reply.stall) recv(connection, &ignored, 1, 0);  // until the client or the server closes
        return !reply.stall && reply.sent == std::string::npos;
    }

    static Request parse(const std::string& head) {
        Request request;
        const size_t space = head.find(' ');
        request.method = head.substr(0, space);
        std::string target = head.substr(space + 1, head.find(' ', space + 1) - space - 1);
        // The absolute URL of a request to a proxy.
        if (target.starts_with("http://")) target.erase(0, target.find('/', 7));
        const size_t query = std::min(target.size(), target.find('?'));
        if (query < target.size()) request.query = target.substr(query + 1);
        target.resize(query);
        for (size_t i = 0; i < target.size(); ++i) {
            const bool encoded = target[i] == '%';
            request.path +=
                encoded ? static_cast<char>(std::stoi(target.substr(i + 1, 2), nullptr, 16)) : target[i];
            if (encoded) i += 2;
        }
        for (size_t at = head.find("\r\n") + 2; at + 2 < head.size();) {
            const size_t colon = head.find(':', at), end = head.find("\r\n", at);
            std::string name = head.substr(at, colon - at);
            std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
            request.headers[name] = head.substr(colon + 2, end - colon - 2);
            at = end + 2;
        }
        return request;
    }

    int socket_, port_ = 0;
    mutable std::mutex mutex_;
    std::vector<Request> requests_;
    std::list<int> open_;
    std::vector<std::thread> connections_;
    std::thread thread_;
};

// A repository of safetensors in two shards, with files that the model does not need.
inline std::map<std::string, HubServer::File> sharded_repo() {
    const nlohmann::json index = {
        {"weight_map",
         {{"a", "model-00001-of-00002.safetensors"}, {"b", "parts/model-00002-of-00002.safetensors"}}}};
    return {
        {"config.json", {R"({"model_type": "llama"})", false}},
        {"generation_config.json", {"{}", false}},
        {"tokenizer.json", {std::string(5000, 't'), true}},
        {"tokenizer_config.json", {R"({"a": 1})", false}},
        {"additional_chat_templates/tool use.jinja", {"{{ x }}", false}},
        {"model.safetensors.index.json", {index.dump(), false}},
        {"model-00001-of-00002.safetensors", {std::string(300'000, 'a'), true}},
        {"parts/model-00002-of-00002.safetensors", {std::string(200'000, 'b'), true}},
        {"README.md", {"read me", false}},
        {"LICENSE", {"license", false}},
        {"consolidated.safetensors", {"all", true}},
        {"pytorch_model.bin", {"pickle", true}},
        {"onnx/model.safetensors", {"other", true}},
    };
}

// A repository of GGUF files: two types, a model in two shards, and files that are no model.
inline std::map<std::string, HubServer::File> gguf_repo() {
    return {
        {"config.json", {"{}", false}},
        {"name-Q4_K_M.gguf", {"GGUF four", true}},
        {"name-Q4_K_S.gguf", {"GGUF small", true}},
        {"Q8_0/name-Q8_0-00001-of-00002.gguf", {"GGUF one", true}},
        {"Q8_0/name-Q8_0-00002-of-00002.gguf", {"GGUF two", true}},
        {"mmproj-Q4_K_M.gguf", {"GGUF image", true}},
    };
}

}  // namespace refold
