// Fields of requests that Ollama's endpoints have in common.
#pragma once

#include <chrono>
#include <cstdint>

#include "serve/generation_fields.h"

namespace refold {

// Options of a model that generates: "options", "format", "stream" (usually true), "keep_alive", "logprobs".
// Ollama's defaults. "num_ctx" bounds prompt and answer; the server's own context does so, too. Throws
// ApiError (400) that names the field and what is wrong.
struct OllamaOptions : ApiRequest {
    std::optional<int64_t> context;  // num_ctx
};
void read_options(Fields& fields, OllamaOptions& out);

// Takes "options" of loading and "keep_alive" where nothing is generated. Throws ApiError (400) for other
// options.
void ignore_model_fields(Fields& fields);

// Nanoseconds from the arrival of the current request until `time`.
int64_t since_arrival(std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now());

}  // namespace refold
