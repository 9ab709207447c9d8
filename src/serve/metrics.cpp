#include "serve/metrics.h"

#include <fmt/format.h>

#include <iterator>

namespace refold {
namespace {

// Escapes a label value as the format requires.
std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
        if (c == '\\' || c == '"') out += '\\';
        if (c == '\n')
            out += "\\n";
        else
            out += c;
    }
    return out;
}

class Writer {
public:
    void begin(const char* name, const char* type, const char* help) {
        name_ = fmt::format("refold_{}", name);
        fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", name_, help, name_, type);
    }
    template <typename Number>
    void value(Number number, const std::string& labels = "", const char* suffix = "") {
        const bool any = !labels.empty();
        fmt::format_to(std::back_inserter(text_), "{}{}{}{}{} {}\n", name_, suffix, any ? "{" : "", labels,
                       any ? "}" : "", number);
    }
    template <typename Number>
    void one(const char* name, const char* type, const char* help, Number number) {
        begin(name, type, help);
        value(number);
    }
    void histogram(const char* name, const char* help, const Histogram& h) {
        begin(name, "histogram", help);
        uint64_t below = 0;
        for (size_t i = 0; i < h.counts.size(); ++i) {
            below += h.counts[i];
            const bool last = i >= h.bounds.size();
            value(below, last ? "le=\"+Inf\"" : fmt::format("le=\"{}\"", h.bounds[i]), "_bucket");
        }
        if (h.counts.size() <= h.bounds.size()) value(below, "le=\"+Inf\"", "_bucket");
        value(h.sum, "", "_sum");
        value(below, "", "_count");
    }
    std::string take() { return std::move(text_); }

private:
    std::string name_, text_;
};

}  // namespace

void HttpCounts::add(const char* endpoint, int status, double seconds) {
    const std::lock_guard lock(mutex_);
    ++counts_.requests[{endpoint, status}];
    counts_.seconds += seconds;
}

HttpCounts::Snapshot HttpCounts::snapshot() const {
    const std::lock_guard lock(mutex_);
    return counts_;
}

const char* finish_reason_name(FinishReason reason) {
    switch (reason) {
        case FinishReason::stop: return "stop";
        case FinishReason::length: return "length";
        case FinishReason::cancelled: return "cancelled";
        case FinishReason::timeout: return "timeout";
        case FinishReason::shutdown: return "shutdown";
        case FinishReason::error: break;
    }
    return "error";
}

std::string prometheus_text(const ServerStatus& s) {
    Writer out;
    const SchedulerStatus& q = s.scheduler;
    out.begin("build_info", "gauge", "Version and model that are served.");
    out.value(1, fmt::format("version=\"{}\",model=\"{}\"", escaped(s.version), escaped(s.model)));
    out.one("uptime_seconds", "gauge", "Since the server listens.", s.uptime_seconds);
    out.one("resident_memory_bytes", "gauge", "Resident memory of the process.", s.resident_bytes);
    out.one("http_connections", "gauge", "Connections that are open.", s.connections);
    out.begin("http_requests_total", "counter", "Requests that were answered; 499: the client left.");
    for (const auto& [key, count] : s.http.requests)
        out.value(count, fmt::format("endpoint=\"{}\",status=\"{}\"", key.first, key.second));
    out.one("http_request_seconds_total", "counter", "From a request's arrival to the end of its answer.",
            s.http.seconds);

    out.one("slots", "gauge", "Sequences that can be generated at a time.", q.slots);
    out.one("requests_running", "gauge", "Sequences being generated.", q.running);
    out.one("requests_waiting", "gauge", "Sequences in the queue.", q.waiting);
    out.one("requests_refused_total", "counter", "Sequences refused because the queue was full.", q.refused);
    out.begin("requests_finished_total", "counter", "Sequences by why they ended.");
    for (const auto& [reason, count] : q.finished)
        out.value(count, fmt::format("reason=\"{}\"", finish_reason_name(reason)));
    out.one("prompt_tokens_total", "counter", "Tokens of prompts.", q.prompt_tokens);
    out.one("known_prompt_tokens_total", "counter",
            "Tokens of prompts that the KV cache had of earlier sequences.", q.known_tokens);
    out.one("generated_tokens_total", "counter", "Tokens that were generated.", q.generated_tokens);

    out.one("engine_steps_total", "counter", "Steps of the engine.", q.steps);
    out.one("engine_rows_total", "counter", "Rows of all steps.", q.rows);
    out.one("batch_rows", "gauge", "Rows of the latest step.", q.last_rows);
    out.begin("batch_rows_by_loop", "gauge", "Rows of the latest step by the loop they ran.");
    for (size_t i = 0; i < q.last_rows_at.size(); ++i)
        out.value(q.last_rows_at[i], fmt::format("loop=\"{}\"", i + 1));
    out.one("kv_tokens", "gauge", "Tokens that the KV cache holds.", q.kv_tokens);
    out.one("kv_tokens_used", "gauge", "Tokens of the KV cache that are reserved.", q.kv_tokens_used);
    out.begin("exit_tokens_total", "counter", "Generated tokens by the loop they were chosen after.");
    for (size_t i = 0; i < q.exits.size(); ++i) out.value(q.exits[i], fmt::format("loop=\"{}\"", i + 1));
    out.one("drafted_tokens_total", "counter", "Tokens drafted by early loops or looked up in the sequence.",
            q.drafted);
    out.one("accepted_tokens_total", "counter", "Drafted tokens that all loops agreed with.", q.accepted);

    out.histogram("time_to_first_token_seconds", "From a sequence's submission to its first token.",
                  q.first_token);
    out.histogram("time_between_tokens_seconds", "Between two tokens of a sequence.", q.between_tokens);
    return out.take();
}

}  // namespace refold
