#include "cli/operation.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "cli/fit_input.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "serve/api_keys.h"
#include "serve/service_manager.h"

namespace refold::cli {
namespace {

using std::chrono::milliseconds;

std::atomic<bool> g_reload{false};

void on_hangup(int, siginfo_t* info, void*) {
    // The terminal is gone: the server ends with it.
    if (info->si_code == SI_KERNEL)
        kill(getpid(), SIGTERM);
    else
        g_reload = true;
}

void handle_hangups() {
    struct sigaction action {};
    action.sa_sigaction = on_hangup;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGHUP, &action, nullptr);
}

milliseconds to_ms(double seconds) { return milliseconds(static_cast<int64_t>(1000 * seconds)); }

size_t size_of(const std::string& text, const char* option, size_t least) {
    const uint64_t bytes = parse_size(text, option).bytes;
    if (bytes < least)
        fail(ErrorCode::usage, "serve", "{}: got {}, expected at least {}", option, text, least);
    return bytes;
}

std::vector<ApiKey> keys_of(const OperationOptions& options) {
    std::vector<ApiKey> keys;
    for (const std::string& key : options.api_keys) keys.push_back({key});
    if (const char* key = std::getenv("REFOLD_API_KEY"); key != nullptr && *key != '\0')
        keys.push_back({key});
    if (!options.key_file.empty())
        for (ApiKey& key : read_api_keys(options.key_file)) keys.push_back(std::move(key));
    return keys;
}

std::unique_ptr<LogWriter> open_access_log(const std::string& path) {
    constexpr size_t kMostLines = 10000;
    if (path.empty()) return nullptr;
    const LogOptions options{.most = kMostLines, .gap = access_log_gap};
    if (path == "-") return std::make_unique<LogWriter>(STDOUT_FILENO, options);
    return std::make_unique<LogWriter>(path, options);
}

void add_limits(CLI::App& app, OperationOptions& o) {
    const auto size = [&](const char* name, std::string& value, const char* description) {
        app.add_option(name, value, description)->type_name("SIZE")->capture_default_str();
    };
    size("--max-body", o.max_body, "Most bytes of a request's body; more are refused (413)");
    size("--max-head", o.max_head, "Most bytes of a request's headers; more are refused (431)");
    size("--max-memory", o.max_memory,
         "Most memory for all requests that come in or are answered; beyond it requests are refused (503)");
    app.add_option("--max-connections", o.max_connections,
                   "Most connections; for more, those are closed that wait without a complete request")
        ->type_name("N")
        ->check(at_least(1))
        ->capture_default_str();
    const auto seconds = [&](const char* name, double& value, const char* description) {
        app.add_option(name, value, description)
            ->type_name("SECONDS")
            ->check(at_least(0.001))
            ->capture_default_str();
    };
    seconds("--idle-timeout", o.idle_timeout, "Silence after which a connection without a request is closed");
    seconds("--read-timeout", o.read_timeout,
            "Most time for a request to come in, or for a TLS handshake; then it is refused (408)");
    seconds("--write-timeout", o.write_timeout, "Most time in all that an answer waits for its client");
}

}  // namespace

void add_operation_options(CLI::App& app, OperationOptions& o) {
    app.add_option(
           "--api-key", o.api_keys,
           "Key that clients must show; also from the variable REFOLD_API_KEY. Others on this machine "
           "see the command line: better a file")
        ->type_name("KEY")
        ->allow_extra_args(false);
    app.add_option("--api-key-file", o.key_file,
                   "Keys that clients must show one of, one per line, with names and limits if wanted: KEY "
                   "name=NAME rpm=N tpm=N concurrent=N. Read again on SIGHUP")
        ->type_name("FILE");
    CLI::Option* certificate =
        app.add_option("--tls-cert", o.tls.certificate,
                       "HTTPS with this certificate and those that vouch for it (PEM). Read again on SIGHUP")
            ->type_name("FILE");
    CLI::Option* key =
        app.add_option("--tls-key", o.tls.key, "The certificate's key (PEM, without a password)")
            ->type_name("FILE")
            ->needs(certificate);
    certificate->needs(key);
    app.add_option(
           "--access-log", o.access_log,
           "Add a line of JSON for every request to this file (-: standard output). Reopened on SIGHUP")
        ->type_name("FILE");
    add_limits(app, o);
}

Operation::Operation(OperationOptions options, std::function<void(const std::string&)> note)
    : options_(std::move(options)),
      note_(std::move(note)),
      access_log_(open_access_log(options_.access_log)) {
    if (options_.tls.key.empty()) return;
    if (const std::string problem = key_file_note(options_.tls.key); !problem.empty()) note_(problem);
}

void Operation::set(ServerOptions& server) const {
    server.api_keys = keys_of(options_);
    if (!options_.tls.certificate.empty()) server.tls = options_.tls;
    server.listener = inherited_listener().value_or(-1);
    constexpr size_t kLeast = 1 << 10;
    server.most_body = size_of(options_.max_body, "--max-body", kLeast);
    server.most_head = size_of(options_.max_head, "--max-head", kLeast);
    server.most_memory = size_of(options_.max_memory, "--max-memory", 1 << 20);
    server.connections = options_.max_connections;
    server.idle_timeout = to_ms(options_.idle_timeout);
    server.read_timeout = to_ms(options_.read_timeout);
    server.write_timeout = to_ms(options_.write_timeout);
}

void Operation::log(const ServedRequest& request) {
    if (access_log_) access_log_->write(access_log_line(request));
}

void Operation::reload(Server& server) {
    std::vector<std::string> done;
    const auto attempt = [&](bool wanted, const char* what, auto&& work) {
        if (!wanted) return;
        try {
            work();
            done.emplace_back(what);
        } catch (const std::exception& error) {
            note_(fmt::format("SIGHUP: the {} stay as they were: {}", what, error.what()));
        }
    };
    attempt(!options_.key_file.empty(), "keys", [&] { server.set_keys(keys_of(options_)); });
    attempt(!options_.tls.certificate.empty(), "certificates", [&] { server.reload_certificate(); });
    attempt(access_log_ != nullptr, "logs", [&] { access_log_->reopen(); });
    if (!done.empty()) note_(fmt::format("SIGHUP: read again: {}", join(done, ", ")));
}

void Operation::run(Server& server) {
    handle_hangups();
    notify_service_manager(fmt::format("READY=1\nSTATUS=Serving at {}", server.url()));
    while (!interrupted()) {
        if (g_reload.exchange(false)) {
            notify_service_manager("RELOADING=1");
            reload(server);
            notify_service_manager("READY=1");
        }
        std::this_thread::sleep_for(milliseconds(50));
    }
    notify_service_manager("STOPPING=1\nSTATUS=Answering the requests that run");
}

}  // namespace refold::cli
