#include "serve/ollama/fields.h"

#include <limits>

#include "serve/http_server.h"
#include "serve/output_format_fields.h"

namespace refold {
namespace {

// How Ollama loads a model, or treats a prompt that does not fit: not for a request to say here.
constexpr const char* kOfServer[] = {
    "numa",     "num_batch", "num_gpu",    "main_gpu",  "low_vram",       "f16_kv",     "logits_all",
    "num_keep", "use_mmap",  "vocab_only", "use_mlock", "embedding_only", "num_thread", "penalize_newline"};

void read_sampling_options(Fields& fields, OllamaOptions& out) {
    Fields options(fields, "options");
    SamplingOptions& sampling = out.options.sampling;
    sampling.temperature = 0.8;
    sampling.top_p = 0.9;
    read_sampling(options, sampling);
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    // -1: any
    if (const auto seed = options.integer("seed", -1, kMost); seed && *seed >= 0)
        out.seed = static_cast<uint64_t>(*seed);
    // -1 and -2: as much as the context holds
    if (const auto most = options.integer("num_predict", -2, INT32_MAX); most && *most >= 0)
        out.max_tokens = most;
    out.context = options.integer("num_ctx", 1, INT32_MAX);
    out.options.stop = stop_texts(options, "stop");
    for (const char* const field : kOfServer) options.ignore(field);
    options.refuse_the_rest();
}

}  // namespace

void read_options(Fields& fields, OllamaOptions& out) {
    read_sampling_options(fields, out);
    const auto format = fields.ordered("format");
    const bool none =
        format.is_null() || (format.is_string() && format.get_ref<const std::string&>().empty());
    if (!none) {
        if (format.is_string() && format != "json")
            refuse("format", "got {}, expected json or a JSON Schema", shown(format));
        out.options.format = format.is_string() ? OutputFormat{.kind = OutputFormat::Kind::json}
                                                : schema_format(format, "format");
    }
    out.stream = fields.boolean("stream", true);
    const auto top = fields.integer("top_logprobs", 0, kMostLogprobs);
    const bool logprobs = fields.boolean("logprobs", false);
    if (top && *top > 0 && !logprobs) refuse("top_logprobs", "only allowed together with 'logprobs': true");
    if (logprobs) out.options.logprobs = static_cast<int>(top.value_or(0));
    fields.ignore("keep_alive");
}

void ignore_model_fields(Fields& fields) {
    Fields options(fields, "options");
    options.ignore("num_ctx");
    for (const char* const field : kOfServer) options.ignore(field);
    options.refuse_the_rest();
    fields.ignore("keep_alive");
}

int64_t since_arrival(std::chrono::steady_clock::time_point time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time - HttpServer::exchange().start).count();
}

}  // namespace refold
