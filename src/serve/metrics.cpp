#include "serve/metrics.h"

#include "serve/metrics_writer.h"
#include "serve/vllm_metrics.h"

namespace refold {
namespace {

void write_server(MetricsWriter& out, const ServerStatus& s) {
    out.begin("build_info", "gauge", "Version of refold.");
    out.value(1, metric_label("version", s.version));
    out.one("uptime_seconds", "gauge", "Since the server listens.", s.uptime_seconds);
    out.one("resident_memory_bytes", "gauge", "Resident memory of the process.", s.resident_bytes);
    out.one("http_connections", "gauge", "Connections that are open.", s.connections);
    out.begin("http_requests_total", "counter", "Requests that were answered; 499: the client left.");
    for (const auto& [key, count] : s.http.requests)
        out.value(count, fmt::format("endpoint=\"{}\",status=\"{}\"", key.first, key.second));
    out.one("http_request_seconds_total", "counter", "From a request's arrival to the end of its answer.",
            s.http.seconds);
}

void write_keys(MetricsWriter& out, const std::vector<KeyStatus>& keys) {
    const auto each = [&](const char* name, const char* type, const char* help, auto member) {
        out.begin(name, type, help);
        for (const KeyStatus& key : keys) out.value(key.counts.*member, metric_label("key", key.name));
    };
    using Counts = KeyHolder::Counts;
    each("key_requests_total", "counter", "Requests of a key's holder.", &Counts::requests);
    each("key_refused_total", "counter", "Requests refused because of the holder's limits.",
         &Counts::refused);
    each("key_requests_running", "gauge", "Requests of a key's holder that are being answered.",
         &Counts::running);
    each("key_prompt_tokens_total", "counter", "Tokens of the holder's prompts.", &Counts::prompt_tokens);
    each("key_generated_tokens_total", "counter", "Tokens generated for the holder.",
         &Counts::generated_tokens);
}

void write_models(MetricsWriter& out, const std::vector<ModelStatus>& models) {
    out.begin("model_memory_bytes", "gauge", "Weights and KV cache of a model; 0: it is not loaded.");
    for (const ModelStatus& model : models)
        out.value(model.memory_bytes, metric_label("model_name", model.name));
    out.begin("model_loads_total", "counter", "How often a model was loaded.");
    for (const ModelStatus& model : models) out.value(model.loads, metric_label("model_name", model.name));
}

void write_schedulers(MetricsWriter& out, const std::vector<ModelStatus>& models) {
    using Q = SchedulerStatus;
    const auto one = [&](const char* name, const char* type, const char* help, auto member) {
        out.each_model(name, type, help, models, [&](const Q& q) { return q.*member; });
    };
    const auto by_loop = [&](const char* name, const char* type, const char* help, auto member) {
        out.several(name, type, help, models, [&](const Q& q, auto&& sample) {
            for (size_t i = 0; i < (q.*member).size(); ++i)
                sample((q.*member)[i], fmt::format("loop=\"{}\"", i + 1));
        });
    };
    one("slots", "gauge", "Sequences that can be generated at a time.", &Q::slots);
    one("requests_running", "gauge", "Sequences being generated.", &Q::running);
    one("requests_waiting", "gauge", "Sequences in the queue.", &Q::waiting);
    one("requests_refused_total", "counter", "Sequences refused because the queue was full.", &Q::refused);
    out.several("requests_finished_total", "counter", "Sequences by why they ended.", models,
                [](const Q& q, auto&& sample) {
                    for (const auto& [reason, count] : q.finished)
                        sample(count, metric_label("reason", finish_reason_name(reason)));
                });
    one("prompt_tokens_total", "counter", "Tokens of prompts.", &Q::prompt_tokens);
    one("known_prompt_tokens_total", "counter",
        "Tokens of prompts that the KV cache had of earlier sequences.", &Q::known_tokens);
    one("generated_tokens_total", "counter", "Tokens that were generated.", &Q::generated_tokens);

    one("engine_steps_total", "counter", "Steps of the engine.", &Q::steps);
    one("engine_rows_total", "counter", "Rows of all steps.", &Q::rows);
    one("batch_rows", "gauge", "Rows of the latest step.", &Q::last_rows);
    by_loop("batch_rows_by_loop", "gauge", "Rows of the latest step by the loop they ran.", &Q::last_rows_at);
    one("kv_tokens", "gauge", "Tokens that the KV cache holds.", &Q::kv_tokens);
    one("kv_tokens_used", "gauge", "Tokens of the KV cache that are reserved.", &Q::kv_tokens_used);
    by_loop("exit_tokens_total", "counter", "Generated tokens by the loop they were chosen after.",
            &Q::exits);
    one("drafted_tokens_total", "counter", "Tokens drafted by early loops or looked up in the sequence.",
        &Q::drafted);
    one("accepted_tokens_total", "counter", "Drafted tokens that all loops agreed with.", &Q::accepted);

    out.histogram("time_to_first_token_seconds", "From a sequence's submission to its first token.", models,
                  &Q::first_token);
    out.histogram("time_between_tokens_seconds", "Between two tokens of a sequence.", models,
                  &Q::between_tokens);
}

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

namespace {

void write_encoders(MetricsWriter& out, const std::vector<NamedEncoderStatus>& encoders) {
    if (encoders.empty()) return;
    const auto each = [&](const char* name, const char* type, const char* help, auto member) {
        out.begin(name, type, help);
        for (const NamedEncoderStatus& model : encoders)
            out.value(model.encoder.*member, metric_label("model_name", model.name));
    };
    using E = EncoderStatus;
    each("encoder_requests", "gauge", "Requests whose texts wait or are encoded.", &E::requests);
    each("encoder_refused_total", "counter", "Requests refused because there were too many.", &E::refused);
    each("encoded_texts_total", "counter", "Texts, and pairs of texts, that were encoded.", &E::texts);
    each("encoded_tokens_total", "counter", "Their tokens.", &E::tokens);
}

}  // namespace

std::string prometheus_text(const ServerStatus& s) {
    MetricsWriter out("refold_");
    write_server(out, s);
    write_keys(out, s.keys);
    write_models(out, s.models);
    write_schedulers(out, s.models);
    write_encoders(out, s.encoders);
    return out.take() + vllm_metrics(s.models);
}

}  // namespace refold
