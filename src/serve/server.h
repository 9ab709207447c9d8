// The server: OpenAI's HTTP interface, metrics and a page, in front of a scheduler. See docs/serving.md.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "serve/scheduler.h"

namespace refold {

struct ServedModel {
    std::string name;                    // by which clients ask for the model
    int64_t context = 0;                 // tokens of one sequence
    int64_t n_vocab = 0;                 // token ids are below it
    std::string version;                 // of refold
    int64_t created = 0;                 // seconds since 1970
    nlohmann::ordered_json description;  // for /status and the page
};

struct ServerOptions {
    std::string host = "127.0.0.1";
    int port = 8080;                    // 0: any free port
    std::vector<std::string> api_keys;  // empty: every request is allowed
    std::string cors_origin;            // whose pages may send requests; empty: none, "*": any
    int64_t slots = 8, queue = 64;      // of the scheduler; bound the requests that are answered at a time
    std::chrono::milliseconds timeout{600000};  // of a request with all its choices, from its arrival
    // Most bytes that reading and keeping the bodies of all requests may take, estimated; less where the
    // system limits the address space.
    size_t most_memory = 256 << 20;
    // See HttpOptions.
    std::chrono::milliseconds idle_timeout{60000}, read_timeout{30000}, write_timeout{30000};
};

// A line of the log. Health checks that succeed have none.
struct ServedRequest {
    std::string client, method, path;  // path has printable characters only
    int status = 0;                    // 499: the client left
    double seconds = 0;
    int64_t prompt_tokens = 0, completion_tokens = 0;
};

class Server {
public:
    // Listens and answers by threads of its own, which call `log`. `scheduler` and `tokenizer` outlive it.
    // Throws Error(io) when the address is not available, Error(usage) for options out of range.
    Server(Scheduler& scheduler, const Tokenizer& tokenizer, ServedModel model, const ServerOptions& options,
           std::function<void(const ServedRequest&)> log = {});
    ~Server();  // as shutdown(0)
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    int port() const;
    std::string url() const;
    // Refuses new connections and requests, ends those that still run after `grace`, answers all, and stops.
    // Returns false when a thread still works a second after that, so that the server is there: then the
    // process must be ended, as the destructor would wait.
    bool shutdown(std::chrono::milliseconds grace);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace refold
