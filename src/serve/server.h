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
    std::string name;                    // that clients ask for
    int64_t context = 0;                 // tokens of one sequence
    int64_t n_vocab = 0;                 // smallest token id that the model has not
    std::string version;                 // of refold
    int64_t created = 0;                 // seconds since 1970
    nlohmann::ordered_json description;  // for /status: what the page shows
};

struct ServerOptions {
    std::string host = "127.0.0.1";
    int port = 8080;                    // 0: any that is free
    std::vector<std::string> api_keys;  // none: everybody is let in
    std::string cors_origin;            // that pages of may ask; empty: none, "*": any
    int64_t slots = 8, queue = 64;      // of the scheduler: as many requests are waited for at a time
    // How long clients may take; see HttpOptions.
    std::chrono::milliseconds idle_timeout{60000}, read_timeout{30000}, write_timeout{30000};
};

// A line of the log.
struct ServedRequest {
    std::string client, method, path;  // path: printable
    int status = 0;                    // 499: the client left
    double seconds = 0;
    int64_t prompt_tokens = 0, completion_tokens = 0;
};

class Server {
public:
    // Listens and answers from here on, by threads of its own. All three must outlive it. `log` is called by
    // any of them. Throws Error(io) when the address cannot be had, Error(usage) for options out of range.
    Server(Scheduler& scheduler, const Tokenizer& tokenizer, ServedModel model, const ServerOptions& options,
           std::function<void(const ServedRequest&)> log = {});
    ~Server();  // as shutdown(0)
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    int port() const;
    std::string url() const;
    // Refuses new connections and requests, ends what runs after `grace` and answers it all, and stops.
    void shutdown(std::chrono::milliseconds grace);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace refold
