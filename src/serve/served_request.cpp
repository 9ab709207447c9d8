#include "serve/served_request.h"

#include <fmt/chrono.h>

#include <cmath>

#include "serve/reply.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

// RFC 3339, in UTC.
std::string written(std::chrono::system_clock::time_point time) {
    const auto ms = std::chrono::time_point_cast<std::chrono::milliseconds>(time);
    const auto seconds = std::chrono::floor<std::chrono::seconds>(ms);
    return fmt::format("{:%FT%T}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)),
                       (ms - seconds).count());
}

// To microseconds.
double rounded(double seconds) { return std::round(seconds * 1e6) / 1e6; }

}  // namespace

ServedRequest served_request(const Exchange& exchange, Exchange::Clock::time_point end) {
    const auto since_start = [&](Exchange::Clock::time_point time) {
        return std::chrono::duration<double>(time - exchange.start).count();
    };
    ServedRequest out;
    out.client = exchange.client;
    out.method = printable(exchange.method);
    out.path = printable(exchange.path);
    out.status = exchange.client_gone ? kClientGone : exchange.status;
    out.seconds = since_start(end);
    out.prompt_tokens = exchange.prompt_tokens;
    out.completion_tokens = exchange.completion_tokens;
    out.cached_tokens = exchange.cached_tokens;
    out.id = exchange.id;
    out.traceparent = exchange.traceparent;
    if (exchange.holder) out.key = exchange.holder->name();
    out.model = exchange.model;
    if (exchange.first_slot) out.queue_seconds = since_start(*exchange.first_slot);
    if (exchange.first_token) out.first_token_seconds = since_start(*exchange.first_token);
    out.finished = exchange.finished;
    using std::chrono::system_clock;
    out.arrived =
        system_clock::now() - std::chrono::duration_cast<system_clock::duration>(end - exchange.start);
    return out;
}

std::string access_log_line(const ServedRequest& r) {
    Json line = {{"time", written(r.arrived)}};
    const auto text = [&](const char* name, const std::string& value) {
        if (!value.empty()) line[name] = value;
    };
    const auto seconds = [&](const char* name, std::optional<double> value) {
        if (value) line[name] = rounded(*value);
    };
    text("request_id", r.id);
    text("traceparent", r.traceparent);
    text("client", r.client);
    text("key", r.key);
    text("method", r.method);
    text("path", r.path);
    line["status"] = r.status;
    text("model", r.model);
    seconds("seconds", r.seconds);
    seconds("queue_seconds", r.queue_seconds);
    seconds("first_token_seconds", r.first_token_seconds);
    if (r.prompt_tokens + r.completion_tokens > 0) {
        line["prompt_tokens"] = r.prompt_tokens;
        line["cached_tokens"] = r.cached_tokens;
        line["completion_tokens"] = r.completion_tokens;
    }
    if (!r.finished.empty()) line["finish_reasons"] = r.finished;
    return dump(line);
}

std::string access_log_gap(size_t count) {
    return dump({{"time", written(std::chrono::system_clock::now())}, {"lost_lines", count}});
}

}  // namespace refold
