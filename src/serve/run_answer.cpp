#include "serve/run_answer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "serve/choices.h"
#include "serve/format_turns.h"
#include "serve/reply.h"

namespace refold {
namespace {

using httplib::Request;
using httplib::Response;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

struct Running {
    std::shared_ptr<ServedModel> model;  // outlives the others
    std::shared_ptr<ApiAnswer> answer;
    Choices choices;
};

// Counts `event`. Returns false when the client has left.
bool counted(const std::optional<Choices::Event>& event, ApiAnswer& answer) {
    if (event) {
        const GenerationEvent& news = event->event;
        Exchange& exchange = HttpServer::exchange();
        answer.count(event->choice, news);
        exchange.completion_tokens = answer.usage.completion_tokens;
        exchange.cached_tokens = answer.usage.cached_tokens;
        if (!exchange.first_slot) exchange.first_slot = news.started;
        if (!exchange.first_token && !news.tokens.empty()) exchange.first_token = Clock::now();
        if (news.finished) ++exchange.finished[finish_reason_name(*news.finished)];
    }
    return !HttpServer::client_gone();
}

// The memory of an answer that is collected: what its events become as JSON.
class Collected {
public:
    explicit Collected(Service& service) : service_(service) {}

    void add(const GenerationEvent& event) {
        constexpr size_t kText = 8, kToken = 32, kLogprob = 512;  // bytes, for each
        for (const auto* logprobs : {&event.logprobs, &event.prompt})
            for (const TokenLogprob& one : *logprobs) owed_ += kLogprob * (1 + one.top.size());
        owed_ += kText * event.text.size() + kToken * event.tokens.size();
        if (owed_ < kPart) return;
        held_.push_back(service_.hold(owed_, bytes_));
        bytes_ += std::exchange(owed_, 0);
    }

private:
    static constexpr size_t kPart = 1 << 20;  // taken at a time
    Service& service_;
    size_t owed_ = 0, bytes_ = 0;
    std::vector<std::shared_ptr<MemoryBudget::Lease>> held_;
};

void answer_at_once(Service& service, Running& running, Response& response) {
    std::vector<GenerationEvent> all(running.answer->choices());
    Collected collected(service);
    while (!running.choices.finished()) {
        auto event = running.choices.next(milliseconds(100));
        if (!counted(event, *running.answer)) {
            response.status = kClientGone;
            return;
        }
        if (!event) continue;
        if (event->event.finished) finish_name(event->event);  // fails at once
        collected.add(event->event);
        append(all[event->choice], std::move(event->event));
    }
    send(response, running.answer->body(all));
}

// Sends the whole stream. Returns false when it is broken off.
bool send_stream(Running& running, httplib::DataSink& sink) {
    constexpr milliseconds kSign(15000);  // proxies close silent connections
    ApiAnswer& answer = *running.answer;
    // Log probabilities of a long prompt come in several events, and a token's text may wait for the next
    // ones.
    std::map<size_t, GenerationEvent> held;
    auto said = Clock::now();
    const auto say = [&](const std::string& text) {
        if (text.empty()) return true;
        said = Clock::now();
        return sink.write(text.data(), text.size());
    };
    try {
        if (!say(answer.begin())) return false;
        while (!running.choices.finished()) {
            auto event = running.choices.next(milliseconds(100));
            if (!counted(event, answer)) return false;
            if (!event) {
                if (Clock::now() - said > kSign && !say(answer.still_there())) return false;
                continue;
            }
            GenerationEvent e = std::move(held[event->choice]);
            append(e, std::move(event->event));
            held[event->choice] = {};
            if (!e.finished && (e.tokens.empty() || (e.text.empty() && e.logprobs.empty()))) {
                held[event->choice] = std::move(e);
                continue;
            }
            if (!say(answer.part(event->choice, e))) return false;
        }
        HttpServer::exchange().turn.reset();  // a client that hears of the end may send its next request
        if (!say(answer.end())) return false;
    } catch (const ApiError& error) {
        if (!say(answer.broken(error))) return false;
    } catch (const std::exception& error) {
        if (!say(answer.broken(ApiError(500, error.what())))) return false;
    }
    sink.done();
    return true;
}

void stream(const std::shared_ptr<Running>& running, const Request& request, Response& response) {
    response.set_header("Cache-Control", "no-store");
    response.set_header("X-Accel-Buffering", "no");  // proxies must not hold events back
    const auto provide = [running](size_t, httplib::DataSink& sink) { return send_stream(*running, sink); };
    const char* const type = running->answer->stream_type();
    if (request.version == "HTTP/1.0") {
        HttpServer::exchange().close = true;
        response.set_content_provider(type, provide);
    } else {
        response.set_chunked_content_provider(type, provide);
    }
}

}  // namespace

void run_answer(Service& service, const std::shared_ptr<ServedModel>& model,
                std::unique_ptr<ApiAnswer> answer, const Request& request, Response& response) {
    const std::shared_ptr<ApiAnswer> shared = std::move(answer);
    shared->compile_format(*model->grammars);
    RequestFormats::end();
    HttpServer::exchange().prompt_tokens = shared->usage.prompt_tokens;
    HttpServer::exchange().model = model->info.name;
    // Enough to keep the slots busy, without filling the queue.
    auto at_once = static_cast<size_t>(2 * service.options.slots);
    if (const auto& holder = HttpServer::exchange().holder; holder && holder->limits().concurrent > 0)
        at_once = std::min(at_once, static_cast<size_t>(holder->limits().concurrent));
    const auto request_for = [shared, adapter = model->adapter](size_t choice) {
        GenerationRequest one = shared->request(choice);
        one.adapter = adapter;
        return one;
    };
    const auto running = std::make_shared<Running>(Running{
        model, shared,
        Choices(model->generating(), request_for,
                {shared->choices(), at_once, service.deadline(), current_client()}, service.stopping)});
    if (shared->stream)
        stream(running, request, response);
    else
        answer_at_once(service, *running, response);
}

}  // namespace refold
