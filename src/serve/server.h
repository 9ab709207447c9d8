// The server: OpenAI's HTTP interface, metrics and a page, in front of models. See docs/serving.md.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "serve/served_request.h"
#include "serve/service.h"

namespace refold {

class Server {
public:
    // Listens and answers by threads of its own, which call `log` for every request but successful health
    // checks. `models` outlives it. Throws Error(io) when the address is not available, Error(usage) for
    // options out of range.
    Server(Models& models, const ServerOptions& options, std::function<void(const ServedRequest&)> log = {});
    ~Server();  // as shutdown(0)
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    int port() const;
    std::string url() const;
    // While it answers: other keys, and the files of the certificate again. Throw as ApiKeys::replace() and
    // Tls::reload() do, and then change nothing. Any thread.
    void set_keys(const std::vector<ApiKey>& keys);
    void reload_certificate();
    // Refuses new connections and requests, ends those that still run after `grace`, answers all, and stops.
    // Returns false when a thread still works a second after that, so that the server is there: then the
    // process must be ended, as the destructor would wait.
    bool shutdown(std::chrono::milliseconds grace);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace refold
