#include "serve/server.h"

#include <algorithm>
#include <thread>

#include "core/error.h"
#include "serve/endpoint.h"
#include "serve/format_turns.h"
#include "serve/host_check.h"
#include "serve/reply.h"
#include "serve/trace_headers.h"

namespace refold {
namespace {

using httplib::Request;
using httplib::Response;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// For an address that there is not: the errors of the interface that it seems to be of.
auto error_of_unknown(std::string_view path) -> decltype(Endpoint::error) {
    constexpr std::string_view kOllama = "/api/";
    for (const Endpoint* endpoint : endpoints()) {
        const std::string_view known = endpoint->path;
        const bool above = path.starts_with(known) && path.substr(known.size()).starts_with('/');
        if (above || (path.starts_with(kOllama) && known.starts_with(kOllama))) return endpoint->error;
    }
    return error_body;
}

// Asked for all the time.
bool is_check(std::string_view endpoint) { return endpoint == "/health" || endpoint == "/ready"; }

// Errors of cpp-httplib, and for those before there is a request.
ApiError plain_error(int status, const std::string& problem) {
    const auto text = [&](const char* otherwise) { return problem.empty() ? otherwise : problem; };
    ApiError error(status, text("the request failed"));
    if (status == 400) error.message = text("the request is not valid HTTP");
    if (status == 404) error.message = text("there is nothing here");
    if (status == 414) error.message = text("the address is too long");
    if (status == 503) error.retry_after = 1;
    return error;
}

bool is_get(const Endpoint& endpoint) { return *endpoint.method == 'G'; }

bool takes_any_name(const Endpoint& endpoint) { return std::string_view(endpoint.path).ends_with('*'); }

// The endpoint of a path; null when there is none.
const Endpoint* find_endpoint(std::string_view path) {
    for (const Endpoint* endpoint : endpoints()) {
        const std::string_view own = endpoint->path;
        if (takes_any_name(*endpoint) ? path.starts_with(own.substr(0, own.size() - 1)) : path == own)
            return endpoint;
    }
    return nullptr;
}

bool is_json(const Request& request) {
    std::string type = request.get_header_value("Content-Type");
    type = type.substr(0, type.find(';'));
    while (!type.empty() && type.back() == ' ') type.pop_back();
    std::ranges::transform(type, type.begin(), [](unsigned char c) { return std::tolower(c); });
    return type == "application/json";
}

// Every body is JSON. Browsers must say so, as forms of other origins' pages cannot without a CORS preflight;
// `curl -d` says that it is a form, which httplib would take apart.
void check_content(const Request& request) {
    const bool json = is_json(request),
               browser = request.has_header("Origin") || request.has_header("Sec-Fetch-Site");
    if (!json && browser)
        throw ApiError(415, "send the body as 'Content-Type: application/json'", "",
                       "unsupported_media_type");
    if (!json) const_cast<Request&>(request).headers.erase("Content-Type");
    const std::string encoding = request.get_header_value("Content-Encoding");
    if (!encoding.empty() && encoding != "identity")
        throw ApiError(415, "send the body without Content-Encoding", "", "unsupported_media_type");
}

}  // namespace

// Requests that may wait for their formats: threads are left for others.
static size_t waiting_formats(const ServerOptions& options) {
    return workers(options) - std::min<size_t>(workers(options) / 2, 16);
}

struct Server::Impl {
    Impl(Models& models, const ServerOptions& given, std::function<void(const ServedRequest&)> a_log)
        : service(models, given),
          format_turns(std::max(2U, std::thread::hardware_concurrency() / 4), waiting_formats(given)),
          log(std::move(a_log)),
          http(http_options(given)) {
        if (given.port < 0 || given.port > 65535)
            fail(ErrorCode::usage, "serve", "--port: got {}, expected a number from 0 to 65535", given.port);
        // These become part of header lines.
        if (!std::ranges::all_of(given.cors_origin, [](char c) { return c > ' ' && c < 127; }))
            fail(ErrorCode::usage, "serve", "--cors-origin: expected an origin as in https://example.org");
        service.connections = [this] { return http.open_connections(); };
        http.error_text = [](int code, const std::string& problem) {
            return error_body(plain_error(code, problem));
        };
        http.on_exchange = [this](const Exchange& exchange) { record(exchange); };
        http.set_exception_handler([](const Request&, Response& response, std::exception_ptr error) {
            guarded(response, error_body, [&] { std::rethrow_exception(std::move(error)); });
        });
        http.set_pre_routing_handler([this](const Request& request, Response& response) {
            return admitted(request, response) ? httplib::Server::HandlerResponse::Unhandled
                                               : httplib::Server::HandlerResponse::Handled;
        });
        for (const Endpoint* endpoint : endpoints()) {
            if (takes_any_name(*endpoint)) continue;  // admitted() answers
            const auto call = [this, endpoint](const Request& request, Response& response) {
                const RequestFormats formats(service, format_turns);
                guarded(response, endpoint->error, [&] { endpoint->answer(service, request, response); });
                if (!response.content_provider_) HttpServer::exchange().turn.reset();
            };
            is_get(*endpoint) ? http.Get(endpoint->path, call) : http.Post(endpoint->path, call);
        }
        http.bind();
        http.start();
    }

    static HttpOptions http_options(const ServerOptions& options) {
        HttpOptions out;
        out.host = options.host;
        out.port = options.port;
        out.listener = options.listener;
        out.tls = options.tls;
        out.most_head = options.most_head;
        out.most_body = options.most_body;
        out.connections = options.connections;
        out.most_buffered = options.most_memory;
        out.workers = workers(options);
        out.most_buffered = allowed_memory(out.most_buffered, out.workers);
        for (const Endpoint* endpoint : endpoints())
            if (endpoint->quick) out.quick_paths.emplace_back(endpoint->path);
        out.idle_timeout = options.idle_timeout;
        out.read_timeout = options.read_timeout;
        out.write_timeout = options.write_timeout;
        return out;
    }

    template <typename Work>
    static void guarded(Response& response, std::string (*body)(const ApiError&), Work&& work) {
        const auto sent = [&](const ApiError& error) { send(response, error, body(error)); };
        try {
            work();
        } catch (const ApiError& error) {
            sent(error);
        } catch (const std::bad_alloc&) {
            sent(no_memory());
        } catch (const std::exception& error) {
            sent(ApiError(500, error.what()));
        }
    }

    // Checks everything but the body. Returns false when the response is made already.
    bool admitted(const Request& request, Response& response) {
        Exchange& exchange = HttpServer::exchange();
        exchange.method = request.method;
        exchange.path = request.path;
        exchange.id = request_id(request.get_header_value("X-Request-Id"));
        exchange.traceparent = checked_traceparent(request.get_header_value("traceparent"));
        response.set_header("X-Content-Type-Options", "nosniff");
        response.set_header("X-Request-Id", exchange.id);
        if (!exchange.traceparent.empty()) response.set_header("traceparent", exchange.traceparent);
        const Endpoint* const endpoint = find_endpoint(request.path);
        bool goes_on = false;
        guarded(response, endpoint == nullptr ? error_of_unknown(request.path) : endpoint->error,
                [&] { goes_on = admitted(request, response, endpoint); });
        return goes_on;
    }

    bool admitted(const Request& request, Response& response, const Endpoint* endpoint) {
        const std::string& origin = service.options.cors_origin;
        if (!service.keys.required() && http.on_loopback() &&
            !is_own_host(request.get_header_value("Host"), http.host()))
            throw ApiError(403,
                           "this server answers only for localhost, IP addresses and its --host, which the "
                           "header Host does not name - start it with an API key for other names",
                           "", "host_not_allowed");
        if (!origin.empty()) {
            response.set_header("Access-Control-Allow-Origin", origin);
            response.set_header("Access-Control-Expose-Headers", "*");
            if (request.method == "OPTIONS") return preflight(request, response);
        }
        if (endpoint != nullptr) HttpServer::exchange().endpoint = endpoint->path;
        const bool open = endpoint != nullptr && endpoint->open;
        if (!open) check_key(request);
        if (endpoint == nullptr)
            throw ApiError(404, "there is no " + printable(request.path), "", "unknown_url");
        const bool get = request.method == "GET" || request.method == "HEAD";
        if (get != is_get(*endpoint) || (!get && request.method != "POST")) {
            response.set_header("Allow", endpoint->method);
            throw ApiError(405, fmt::format("{} takes {}", printable(request.path), endpoint->method), "",
                           "method_not_allowed");
        }
        if (!get) check_content(request);
        if (!get) take_turn(response);
        if (!takes_any_name(*endpoint)) return true;
        endpoint->answer(service, request, response);
        return false;
    }

    // Notes who asks.
    void check_key(const Request& request) {
        if (!service.keys.required()) return;
        HttpServer::exchange().holder = service.keys.find(request.get_header_value("Authorization"),
                                                          request.get_header_value("x-api-key"));
        if (!HttpServer::exchange().holder)
            throw ApiError(401, "a valid API key is needed: 'Authorization: Bearer KEY'", "",
                           "invalid_api_key");
    }

    // Requests with a body are what keys limit.
    static void take_turn(Response& response) {
        Exchange& exchange = HttpServer::exchange();
        if (!exchange.holder) return;
        const auto now = Clock::now();
        const auto tell = [&] {
            for (const auto& [name, value] : exchange.holder->headers(now)) response.set_header(name, value);
        };
        try {
            exchange.turn = exchange.holder->begin(now);
        } catch (const ApiError&) {
            tell();
            throw;
        }
        tell();
    }

    // Clients of the origin may send what headers they like: none but the key's changes an answer.
    bool preflight(const Request& request, Response& response) const {
        const std::string& origin = service.options.cors_origin;
        constexpr const char* kAsked = "Access-Control-Request-Headers";
        response.status = 204;
        response.set_header("Vary", fmt::format("Origin, {}", kAsked));
        const bool allowed = origin == "*" || request.get_header_value("Origin") == origin;
        if (!allowed) return false;
        response.set_header("Access-Control-Allow-Methods", "GET, POST");
        response.set_header("Access-Control-Allow-Headers", request.has_header(kAsked)
                                                                ? request.get_header_value(kAsked)
                                                                : "Authorization, Content-Type");
        response.set_header("Access-Control-Max-Age", "600");
        return false;
    }

    void record(const Exchange& exchange) {
        const auto now = Clock::now();
        const ServedRequest served = served_request(exchange, now);
        service.counts.add(exchange.endpoint, served.status, served.seconds);
        if (exchange.holder)
            exchange.holder->use_tokens(exchange.prompt_tokens, exchange.completion_tokens, now);
        if (log && !(served.status == 200 && is_check(exchange.endpoint))) log(served);
    }

    Service service;
    FormatTurns format_turns;
    const std::function<void(const ServedRequest&)> log;
    HttpServer http;  // last: its threads use all of the above
};

Server::Server(Models& models, const ServerOptions& options, std::function<void(const ServedRequest&)> log)
    : impl_(std::make_unique<Impl>(models, options, std::move(log))) {}

Server::~Server() {
    shutdown(milliseconds(0));
    impl_->http.stop();
}

int Server::port() const { return impl_->http.port(); }

std::string Server::url() const {
    const std::string& host = impl_->http.host();
    const bool v6 = host.find(':') != std::string::npos;
    return fmt::format("{}://{}{}{}:{}", impl_->http.tls() == nullptr ? "http" : "https", v6 ? "[" : "", host,
                       v6 ? "]" : "", port());
}

void Server::set_keys(const std::vector<ApiKey>& keys) { impl_->service.keys.replace(keys); }

void Server::reload_certificate() {
    if (Tls* const tls = impl_->http.tls()) tls->reload();
}

bool Server::shutdown(milliseconds grace) {
    // Clients have it after the grace to take their answers.
    constexpr milliseconds kLast(1000);
    const auto end = Clock::now() + std::min<milliseconds>(grace, std::chrono::years(10));
    impl_->service.stopping = true;
    impl_->http.drain(milliseconds(0));
    impl_->service.models.shutdown(grace);
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
    if (!impl_->http.drain(std::max(left, kLast))) {
        impl_->http.cut_off();
        if (!impl_->http.drain(kLast)) return false;
    }
    impl_->http.stop();
    return true;
}

}  // namespace refold
