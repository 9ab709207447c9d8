// What whoever operates `refold serve` decides: who may use it, over TLS or not, limits, logs; and what runs
// beside the server.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "serve/log_writer.h"
#include "serve/server.h"

namespace refold::cli {

struct OperationOptions {
    std::vector<std::string> api_keys;
    std::string key_file;
    TlsFiles tls;
    std::string access_log;
    std::string max_body = "8MiB", max_head = "32KiB", max_memory = "256MiB";
    double idle_timeout = 60, read_timeout = 30, write_timeout = 30;  // seconds
    size_t max_connections = 4096;
};

// --api-key, --api-key-file, --tls-cert, --tls-key, --access-log, --max-..., --...-timeout
void add_operation_options(CLI::App& app, OperationOptions& options);

class Operation {
public:
    // Says to `note` what the operator should know; it is called by run() as well. Throws Error for files
    // that are wrong and options out of range.
    Operation(OperationOptions options, std::function<void(const std::string&)> note);

    // Sets what the options say.
    void set(ServerOptions& server) const;
    // A line for the access log. Any thread.
    void log(const ServedRequest& request);
    // Tells the service manager that the server is ready, and returns when a signal says that it must end.
    // Meanwhile SIGHUP makes it read keys and certificate anew and reopen the access log; what is wrong
    // leaves all as it was.
    void run(Server& server);

private:
    void reload(Server& server);

    const OperationOptions options_;
    const std::function<void(const std::string&)> note_;
    std::unique_ptr<LogWriter> access_log_;
};

}  // namespace refold::cli
