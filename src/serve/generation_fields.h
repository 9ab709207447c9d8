// What every request to generate may ask for: sampling, ends, format, streaming. Fields that OpenAI does not
// have are named as in vLLM and llama.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "refold/generation.h"
#include "serve/fields.h"

namespace refold {

// Most choices of one request: prompts times n.
constexpr int64_t kMostChoices = 2048;
constexpr int64_t kMostLogprobs = 20;

struct ApiRequest {
    std::string model;    // empty: not given
    int64_t n = 1;        // choices of each prompt
    int64_t best_of = 1;  // generated for each, if more than n: the n likeliest are given
    // max_tokens and the seed are separate: their defaults depend on the request.
    GenerationOptions options;
    std::optional<int64_t> max_tokens;
    std::optional<uint64_t> seed;
    bool stream = false, include_usage = false;
    bool return_exits = false;  // the loops that tokens were taken after; no field of other servers
};

// Fields of sampling but logit_bias; `out` has the values of those that are missing.
void read_sampling(Fields& fields, SamplingOptions& out);
// Texts that end the generation: one, or up to 16 in an array. Throws ApiError (400).
std::vector<std::string> stop_texts(Fields& fields, const char* field);

// Reads all of it but max_tokens and log probabilities, whose fields differ. Throws ApiError (400) that names
// the field and what is wrong.
void read_generation(Fields& fields, ApiRequest& out);

}  // namespace refold
