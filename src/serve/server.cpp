#include "serve/server.h"

#include <algorithm>
#include <atomic>

#include "core/error.h"
#include "eval/speed.h"
#include "serve/answer.h"
#include "serve/api_error.h"
#include "serve/api_keys.h"
#include "serve/body_json.h"
#include "serve/choices.h"
#include "serve/host_check.h"
#include "serve/http_server.h"
#include "serve/memory_budget.h"
#include "serve/metrics.h"
#include "serve/page.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;
using httplib::Request;
using httplib::Response;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr const char* kJson = "application/json";
constexpr int kClientGone = 499;
constexpr const char* kHealth = "/health";
constexpr std::string_view kOneModel = "/v1/models/";  // followed by a name, which may contain slashes

std::string dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

void send(Response& response, const Json& value) { response.set_content(dump(value) + "\n", kJson); }

void send(Response& response, const ApiError& error) {
    response.status = error.status;
    if (error.retry_after > 0) response.set_header("Retry-After", std::to_string(error.retry_after));
    if (error.status == 401) response.set_header("WWW-Authenticate", "Bearer");
    response.set_content(error_body(error), kJson);
}

// The same for errors of cpp-httplib, and for those before there is a request.
ApiError plain_error(int status, const std::string& problem) {
    const auto text = [&](const char* otherwise) { return problem.empty() ? otherwise : problem; };
    ApiError error(status, text("the request failed"));
    if (status == 400) error.message = text("the request is not valid HTTP");
    if (status == 404) error.message = text("there is nothing here");
    if (status == 414) error.message = text("the address is too long");
    if (status == 503) error.retry_after = 1;
    return error;
}

// Bytes of the longest token's text.
size_t longest_token(const Tokenizer& tokenizer) {
    size_t longest = 0;
    for (int32_t token = 0; token < tokenizer.size(); ++token)
        longest = std::max(longest, tokenizer.piece(token, true).size());
    return longest;
}

// Makes a client's text fit on one line of the log.
std::string printable(const std::string& text) {
    std::string out;
    for (const char c : text.substr(0, 120)) out += c > ' ' && c < 127 ? c : '?';
    return out;
}

// State of a stream.
struct Streaming {
    std::shared_ptr<ApiAnswer> answer;
    Choices choices;
};

}  // namespace

struct Server::Impl {
    using Handler = void (Impl::*)(const Request&, Response&);
    struct Route {
        const char *method, *path;
        bool open;  // needs no key
        Handler handler;
    };

    Impl(Scheduler& the_scheduler, const Tokenizer& the_tokenizer, ServedModel served,
         const ServerOptions& given, std::function<void(const ServedRequest&)> a_log)
        : scheduler(the_scheduler),
          tokenizer(the_tokenizer),
          model(std::move(served)),
          options(given),
          log(std::move(a_log)),
          keys(given.api_keys),
          chat_prompt(the_tokenizer),
          limits{model.context, model.n_vocab, longest_token(the_tokenizer)},
          grammars(the_tokenizer, model.n_vocab),
          memory(allowed_memory(given.most_memory, workers(given))),
          http(http_options(given)) {
        if (given.port < 0 || given.port > 65535)
            fail(ErrorCode::usage, "serve", "--port: got {}, expected a number from 0 to 65535", given.port);
        // These become part of header lines.
        if (!std::ranges::all_of(given.cors_origin, [](char c) { return c > ' ' && c < 127; }))
            fail(ErrorCode::usage, "serve", "--cors-origin: expected an origin as in https://example.org");
        http.error_text = [](int code, const std::string& problem) {
            return error_body(plain_error(code, problem));
        };
        http.on_exchange = [this](const Exchange& exchange) { record(exchange); };
        http.set_exception_handler([](const Request&, Response& response, std::exception_ptr error) {
            guarded(response, [&] { std::rethrow_exception(std::move(error)); });
        });
        http.set_pre_routing_handler([this](const Request& request, Response& response) {
            return admitted(request, response) ? httplib::Server::HandlerResponse::Unhandled
                                               : httplib::Server::HandlerResponse::Handled;
        });
        for (const Route& route : kRoutes) {
            const auto call = [this, &route](const Request& request, Response& response) {
                guarded(response, [&] { (this->*route.handler)(request, response); });
            };
            *route.method == 'G' ? http.Get(route.path, call) : http.Post(route.path, call);
        }
        http.bind();
        http.start();
    }

    // One worker for every request that the scheduler takes, and a few to answer that it is full.
    static size_t workers(const ServerOptions& options) {
        return static_cast<size_t>(std::clamp<int64_t>(options.slots + options.queue + 16, 17, 1024));
    }

    static HttpOptions http_options(const ServerOptions& options) {
        HttpOptions out;
        out.host = options.host;
        out.port = options.port;
        out.workers = workers(options);
        out.most_buffered = allowed_memory(out.most_buffered, out.workers);
        out.quick_paths = {kHealth, "/metrics", "/status"};
        out.idle_timeout = options.idle_timeout;
        out.read_timeout = options.read_timeout;
        out.write_timeout = options.write_timeout;
        return out;
    }

    template <typename Work>
    static void guarded(Response& response, Work&& work) {
        try {
            work();
        } catch (const ApiError& error) {
            send(response, error);
        } catch (const std::bad_alloc&) {
            send(response, no_memory());
        } catch (const std::exception& error) {
            send(response, ApiError(500, error.what()));
        }
    }

    static ApiError no_memory() {
        ApiError error(503, "other requests need the memory at present - try again later", "",
                       "out_of_memory");
        error.retry_after = 1;
        return error;
    }

    Clock::time_point deadline() const {
        return HttpServer::exchange().start + std::min<milliseconds>(options.timeout, std::chrono::years(10));
    }

    // Throws when the work for the current request is in vain.
    void check() const {
        if (HttpServer::client_gone()) throw ApiError(kClientGone, "the client left");
        if (stopping) throw ApiError(503, "the server is shutting down", "", "shutting_down");
        if (Clock::now() >= deadline()) throw timeout_error();
    }

    // What parse() makes of the body, with the memory for both.
    template <typename Parse>
    auto parsed(const Request& request, Parse&& parse) {
        check();
        const BodyCost cost = count_body(request.body);
        if (cost.to_read() > memory.bytes())
            throw ApiError(413, "this server has too little memory for the request", "", "out_of_memory");
        const auto lease = memory.take(cost.to_read());
        if (!lease) throw no_memory();
        HttpServer::exchange().holds = lease;
        HttpServer::exchange().memory = cost.to_read();
        auto asked = parse(request.body);
        lease->shrink(cost.to_keep());
        check_model(asked.model);
        return asked;
    }

    // Checks everything but the body. Returns false when the request is refused and the response made.
    bool admitted(const Request& request, Response& response) {
        Exchange& exchange = HttpServer::exchange();
        exchange.method = request.method;
        exchange.path = request.path;
        response.set_header("X-Content-Type-Options", "nosniff");
        try {
            if (!keys.required() && http.on_loopback() &&
                !is_own_host(request.get_header_value("Host"), options.host))
                throw ApiError(403,
                               "this server answers only for localhost, IP addresses and its --host, which "
                               "the header Host does not name - start it with an API key for other names",
                               "", "host_not_allowed");
            if (!options.cors_origin.empty()) {
                response.set_header("Access-Control-Allow-Origin", options.cors_origin);
                if (request.method == "OPTIONS") return preflight(request, response);
            }
            const bool get = request.method == "GET" || request.method == "HEAD";
            const Route* found = nullptr;
            for (const Route& route : kRoutes)
                if (request.path == route.path) found = &route;
            const bool one_model = request.path.starts_with(kOneModel);
            if (one_model) found = std::ranges::find(kRoutes, &Impl::models, &Route::handler);
            if (found != nullptr) exchange.endpoint = found->path;
            const bool open = found != nullptr && found->open;
            if (!open && !keys.allows(request.get_header_value("Authorization")))
                throw ApiError(401, "a valid API key is needed: 'Authorization: Bearer KEY'", "",
                               "invalid_api_key");
            if (found == nullptr)
                throw ApiError(404, "there is no " + printable(request.path), "", "unknown_url");
            if (get != (*found->method == 'G') || (!get && request.method != "POST")) {
                response.set_header("Allow", found->method);
                throw ApiError(405, fmt::format("{} takes {}", printable(request.path), found->method), "",
                               "method_not_allowed");
            }
            if (!get) check_content(request);
            if (one_model) {
                check_model(request.path.substr(kOneModel.size()));
                send(response, model_json());
                return false;
            }
        } catch (const ApiError& error) {
            send(response, error);
            return false;
        }
        return true;
    }

    // Clients of the origin may send what headers they like: none but the key's changes an answer.
    bool preflight(const Request& request, Response& response) const {
        constexpr const char* kAsked = "Access-Control-Request-Headers";
        response.status = 204;
        response.set_header("Vary", fmt::format("Origin, {}", kAsked));
        const bool allowed =
            options.cors_origin == "*" || request.get_header_value("Origin") == options.cors_origin;
        if (!allowed) return false;
        response.set_header("Access-Control-Allow-Methods", "GET, POST");
        response.set_header("Access-Control-Allow-Headers", request.has_header(kAsked)
                                                                ? request.get_header_value(kAsked)
                                                                : "Authorization, Content-Type");
        response.set_header("Access-Control-Max-Age", "600");
        return false;
    }

    // JSON only: forms of other origins' pages cannot send it without a CORS preflight.
    static void check_content(const Request& request) {
        std::string type = request.get_header_value("Content-Type");
        type = type.substr(0, type.find(';'));
        while (!type.empty() && type.back() == ' ') type.pop_back();
        std::ranges::transform(type, type.begin(), [](unsigned char c) { return std::tolower(c); });
        if (type != kJson)
            throw ApiError(415, "send the body as 'Content-Type: application/json'", "",
                           "unsupported_media_type");
        const std::string encoding = request.get_header_value("Content-Encoding");
        if (!encoding.empty() && encoding != "identity")
            throw ApiError(415, "send the body without Content-Encoding", "", "unsupported_media_type");
    }

    void check_model(const std::string& name) const {
        if (!name.empty() && name != model.name)
            throw ApiError(
                404, fmt::format("the model '{}' is not served here, '{}' is", printable(name), model.name),
                "model", "model_not_found");
    }

    Json model_json() const {
        return {{"id", model.name},
                {"object", "model"},
                {"created", model.created},
                {"owned_by", "refold"},
                {"max_model_len", model.context}};
    }

    void models(const Request&, Response& response) {
        send(response, {{"object", "list"}, {"data", Json::array({model_json()})}});
    }

    void health(const Request&, Response& response) {
        if (stopping) throw ApiError(503, "the server is shutting down", "", "shutting_down");
        send(response, {{"status", "ok"}});
    }

    void page(const Request&, Response& response) {
        response.set_header("Content-Security-Policy", policy);
        response.set_header("Referrer-Policy", "no-referrer");
        response.set_header("Cache-Control", "no-cache");
        response.set_content(std::string(kPage), "text/html; charset=utf-8");
    }

    void metrics(const Request&, Response& response) {
        ServerStatus all;
        all.scheduler = scheduler.status();
        all.http = counts.snapshot();
        all.connections = http.open_connections();
        all.uptime_seconds = std::chrono::duration<double>(Clock::now() - started).count();
        all.resident_bytes = resident_bytes();
        all.version = model.version;
        all.model = model.name;
        response.set_content(prometheus_text(all), "text/plain; version=0.0.4; charset=utf-8");
    }

    void status(const Request&, Response& response) {
        const SchedulerStatus s = scheduler.status();
        Json finished = Json::object();
        for (const auto& [reason, count] : s.finished) finished[finish_reason_name(reason)] = count;
        response.set_header("Cache-Control", "no-store");
        send(response, {{"model", model.name},
                        {"description", model.description},
                        {"context", model.context},
                        {"chat", chat_prompt.problem().empty()},
                        {"slots", s.slots},
                        {"running", s.running},
                        {"waiting", s.waiting},
                        {"kv_tokens", s.kv_tokens},
                        {"kv_tokens_used", s.kv_tokens_used},
                        {"prompt_tokens", s.prompt_tokens},
                        {"known_tokens", s.known_tokens},
                        {"generated_tokens", s.generated_tokens},
                        {"steps", s.steps},
                        {"rows", s.rows},
                        {"last_rows", s.last_rows},
                        {"last_rows_at", s.last_rows_at},
                        {"exits", s.exits},
                        {"drafted", s.drafted},
                        {"accepted", s.accepted},
                        {"refused", s.refused},
                        {"finished", finished},
                        {"connections", http.open_connections()},
                        {"uptime_seconds", std::chrono::duration<double>(Clock::now() - started).count()}});
    }

    void tokenize(const Request& request, Response& response) {
        const TokenizeRequest asked = parsed(request, parse_tokenize_request);
        // Documents that are longer than the context are cut into tokens, too.
        constexpr size_t kMost = 1 << 20;
        if (asked.text.size() > kMost)
            throw ApiError(
                400, fmt::format("got a text of {} bytes, expected at most {}", asked.text.size(), kMost),
                "prompt");
        const std::vector<int32_t> tokens = tokenizer.encode(asked.text, asked.add_special, true);
        send(response, {{"count", tokens.size()}, {"max_model_len", model.context}, {"tokens", tokens}});
    }

    void detokenize(const Request& request, Response& response) {
        const DetokenizeRequest asked = parsed(request, parse_detokenize_request);
        for (const int32_t id : asked.tokens)
            if (id >= model.n_vocab)
                throw ApiError(
                    400,
                    fmt::format("'tokens': got the token id {}, the vocabulary has {}", id, model.n_vocab),
                    "tokens");
        send(response, {{"prompt", tokenizer.decode(asked.tokens, true)}});
    }

    // lm-evaluation-harness asks for it when it has no tokenizer of its own.
    void tokenizer_info(const Request&, Response& response) {
        const auto text = [&](std::optional<int32_t> token) {
            return token ? Json(tokenizer.piece(*token, true)) : Json();
        };
        send(response,
             {{"bos_token", text(tokenizer.bos())},
              {"eos_token", text(tokenizer.eos())},
              {"chat_template", tokenizer.has_chat_template() ? Json(tokenizer.chat_template()) : Json()}});
    }

    void completions(const Request& request, Response& response) {
        const CompletionRequest asked = parsed(request, parse_completion_request);
        run(make_answer(asked, tokenizer, limits, model.name, [this] { check(); }), request, response);
    }

    void chat(const Request& request, Response& response) {
        const ChatRequest asked = parsed(request, parse_chat_request);
        run(make_answer(asked, tokenizer, chat_prompt, limits, model.name, [this] { check(); }), request,
            response);
    }

    void run(std::shared_ptr<ApiAnswer> answer, const Request& request, Response& response) {
        answer->compile_format(grammars);
        HttpServer::exchange().prompt_tokens = answer->usage.prompt_tokens;
        // Enough to keep the slots busy, without filling the queue.
        const auto at_once = static_cast<size_t>(2 * options.slots);
        Choices choices(
            scheduler, [answer](size_t choice) { return answer->request(choice); },
            {answer->choices(), at_once, deadline()}, stopping);
        if (answer->stream) {
            stream({std::move(answer), std::move(choices)}, request, response);
        } else {
            answer_at_once(*answer, choices, response);
        }
    }

    // Counts `event`. Returns false when the client has left.
    static bool counted(const std::optional<Choices::Event>& event, Usage& usage) {
        if (event) {
            usage.completion_tokens += static_cast<int64_t>(event->event.tokens.size());
            HttpServer::exchange().completion_tokens = usage.completion_tokens;
        }
        return !HttpServer::client_gone();
    }

    static void answer_at_once(ApiAnswer& answer, Choices& choices, Response& response) {
        std::vector<GenerationEvent> all(answer.choices());
        while (!choices.finished()) {
            auto event = choices.next(milliseconds(100));
            if (!counted(event, answer.usage)) {
                response.status = kClientGone;
                return;
            }
            if (!event) continue;
            if (event->event.finished) finish_name(event->event);  // fails at once
            append(all[event->choice], std::move(event->event));
        }
        Json list = Json::array();
        for (size_t i = 0; i < all.size(); ++i) list.push_back(answer.choice(i, all[i]));
        Json body = answer.head.object(std::move(list), false);
        body["usage"] = answer.usage.json();
        send(response, body);
    }

    void stream(Streaming streaming, const Request& request, Response& response) {
        const auto shared = std::make_shared<Streaming>(std::move(streaming));
        response.set_header("Cache-Control", "no-store");
        response.set_header("X-Accel-Buffering", "no");  // proxies must not hold events back
        const auto provide = [this, shared](size_t, httplib::DataSink& sink) {
            return send_stream(*shared, sink);
        };
        if (request.version == "HTTP/1.0") {
            HttpServer::exchange().close = true;
            response.set_content_provider("text/event-stream", provide);
        } else {
            response.set_chunked_content_provider("text/event-stream", provide);
        }
    }

    // Sends the whole stream. Returns false when it is broken off.
    bool send_stream(Streaming& streaming, httplib::DataSink& sink) {
        constexpr milliseconds kSign(15000);  // proxies close silent connections
        ApiAnswer& answer = *streaming.answer;
        std::map<size_t, GenerationEvent> held;  // log probabilities of a long prompt come in several events
        auto said = Clock::now();
        const auto say = [&](const std::string& text) {
            said = Clock::now();
            return sink.write(text.data(), text.size());
        };
        const auto say_json = [&](const Json& value) { return say("data: " + dump(value) + "\n\n"); };
        try {
            while (!streaming.choices.finished()) {
                auto event = streaming.choices.next(milliseconds(100));
                if (!counted(event, answer.usage)) return false;
                if (!event) {
                    if (Clock::now() - said > kSign && !say(": waiting\n\n")) return false;
                    continue;
                }
                GenerationEvent e = std::move(held[event->choice]);
                append(e, std::move(event->event));
                held[event->choice] = {};
                if (!e.finished && e.tokens.empty()) {
                    held[event->choice] = std::move(e);
                    continue;
                }
                if (!e.finished && e.text.empty() && e.logprobs.empty()) continue;
                Json chunk = answer.head.object(Json::array({answer.choice(event->choice, e)}), true);
                if (answer.include_usage) chunk["usage"] = nullptr;
                if (!say_json(chunk)) return false;
            }
            if (answer.include_usage) {
                Json chunk = answer.head.object(Json::array(), true);
                chunk["usage"] = answer.usage.json();
                if (!say_json(chunk)) return false;
            }
            if (!say("data: [DONE]\n\n")) return false;
        } catch (const ApiError& error) {
            if (!say("data: " + error_body(error) + "\n")) return false;
        } catch (const std::exception& error) {
            if (!say("data: " + error_body(ApiError(500, error.what())) + "\n")) return false;
        }
        sink.done();
        return true;
    }

    void record(const Exchange& exchange) {
        const int code = exchange.client_gone ? kClientGone : exchange.status;
        const double seconds = std::chrono::duration<double>(Clock::now() - exchange.start).count();
        counts.add(exchange.endpoint, code, seconds);
        if (log && !(code == 200 && exchange.endpoint == std::string_view(kHealth)))
            log({exchange.client, printable(exchange.method), printable(exchange.path), code, seconds,
                 exchange.prompt_tokens, exchange.completion_tokens});
    }

    static constexpr Route kRoutes[] = {{"GET", "/", true, &Impl::page},
                                        {"GET", kHealth, true, &Impl::health},
                                        {"GET", "/metrics", false, &Impl::metrics},
                                        {"GET", "/status", false, &Impl::status},
                                        {"GET", "/v1/models", false, &Impl::models},
                                        {"POST", "/v1/completions", false, &Impl::completions},
                                        {"POST", "/v1/chat/completions", false, &Impl::chat},
                                        {"POST", "/tokenize", false, &Impl::tokenize},
                                        {"POST", "/detokenize", false, &Impl::detokenize},
                                        {"GET", "/tokenizer_info", false, &Impl::tokenizer_info}};

    Scheduler& scheduler;
    const Tokenizer& tokenizer;
    const ServedModel model;
    const ServerOptions options;
    const std::function<void(const ServedRequest&)> log;
    const ApiKeys keys;
    const ChatPrompt chat_prompt;
    const PromptLimits limits;
    GrammarCompiler grammars;
    MemoryBudget memory;
    const std::string policy = page_security_policy();
    const Clock::time_point started = Clock::now();
    HttpCounts counts;
    std::atomic<bool> stopping{false};
    HttpServer http;  // last: its threads use all of the above
};

Server::Server(Scheduler& scheduler, const Tokenizer& tokenizer, ServedModel model,
               const ServerOptions& options, std::function<void(const ServedRequest&)> log)
    : impl_(std::make_unique<Impl>(scheduler, tokenizer, std::move(model), options, std::move(log))) {}

Server::~Server() {
    shutdown(milliseconds(0));
    impl_->http.stop();
}

int Server::port() const { return impl_->http.port(); }

std::string Server::url() const {
    const std::string& host = impl_->options.host;
    const bool v6 = host.find(':') != std::string::npos;
    return fmt::format("http://{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", port());
}

bool Server::shutdown(milliseconds grace) {
    // Clients have it after the grace to take their answers.
    constexpr milliseconds kLast(1000);
    const auto end = Clock::now() + std::min<milliseconds>(grace, std::chrono::years(10));
    impl_->stopping = true;
    impl_->http.drain(milliseconds(0));
    impl_->scheduler.shutdown(grace);
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
    if (!impl_->http.drain(std::max(left, kLast))) {
        impl_->http.cut_off();
        if (!impl_->http.drain(kLast)) return false;
    }
    impl_->http.stop();
    return true;
}

}  // namespace refold
