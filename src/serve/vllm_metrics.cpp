#include "serve/vllm_metrics.h"

#include <map>

#include "serve/metrics_writer.h"

namespace refold {
namespace {

const char* vllm_reason(FinishReason reason) {
    switch (reason) {
        case FinishReason::stop: return "stop";
        case FinishReason::length: return "length";
        case FinishReason::error: return "error";
        default: return "abort";
    }
}

}  // namespace

std::string vllm_metrics(const std::vector<ModelStatus>& models) {
    using Q = SchedulerStatus;
    MetricsWriter out("vllm:", "engine=\"0\"");
    const auto gauge = [&](const char* name, const char* help, auto&& number) {
        out.each_model(name, "gauge", help, models, number);
    };
    const auto counter = [&](const char* name, const char* help, auto&& number) {
        out.each_model(name, "counter", help, models, number);
    };
    const auto histogram = [&](const char* name, const char* help, Histogram Q::*member) {
        out.histogram(name, help, models, member);
    };
    gauge("num_requests_running", "Sequences being generated.", [](const Q& q) { return q.running; });
    gauge("num_requests_waiting", "Sequences in the queue.", [](const Q& q) { return q.waiting; });
    gauge("kv_cache_usage_perc", "Reserved part of the KV cache, from 0 to 1.", [](const Q& q) {
        return q.kv_tokens == 0 ? 0.0
                                : static_cast<double>(q.kv_tokens_used) / static_cast<double>(q.kv_tokens);
    });
    counter("prompt_tokens_total", "Tokens of prompts.", [](const Q& q) { return q.prompt_tokens; });
    counter("generation_tokens_total", "Generated tokens.", [](const Q& q) { return q.generated_tokens; });
    counter("prefix_cache_queries_total", "Tokens of prompts that were looked for in the KV cache.",
            [](const Q& q) { return q.prompt_tokens; });
    counter("prefix_cache_hits_total", "Of them, those that were found.",
            [](const Q& q) { return q.known_tokens; });
    out.several("request_success_total", "counter", "Sequences by why they ended.", models,
                [](const Q& q, auto&& sample) {
                    std::map<std::string, uint64_t> counts;
                    for (const FinishReason reason : {FinishReason::stop, FinishReason::length,
                                                      FinishReason::cancelled, FinishReason::error})
                        counts[vllm_reason(reason)];
                    for (const auto& [reason, count] : q.finished) counts[vllm_reason(reason)] += count;
                    for (const auto& [reason, count] : counts)
                        sample(count, metric_label("finished_reason", reason));
                });
    histogram("time_to_first_token_seconds", "From a sequence's submission to its first token.",
              &Q::first_token);
    histogram("inter_token_latency_seconds", "Between two tokens of a sequence.", &Q::between_tokens);
    histogram("time_per_output_token_seconds", "The same by its older name.", &Q::between_tokens);
    histogram("e2e_request_latency_seconds", "From a sequence's submission to its end.", &Q::whole);
    histogram("request_queue_time_seconds", "From a sequence's submission to its slot.", &Q::queue);
    histogram("request_prefill_time_seconds", "From a sequence's slot to its first token.", &Q::prefill);
    histogram("request_decode_time_seconds", "From a sequence's first token to its end.", &Q::decode);
    histogram("request_inference_time_seconds", "From a sequence's slot to its end.", &Q::in_slot);
    histogram("request_prompt_tokens", "Tokens of a sequence's prompt.", &Q::prompt_length);
    histogram("request_generation_tokens", "Tokens generated of a sequence.", &Q::generated_length);
    histogram("request_max_num_generation_tokens", "Tokens that a sequence was allowed.", &Q::most_length);
    return out.take();
}

}  // namespace refold
