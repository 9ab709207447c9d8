// Embeddings for the endpoints that give them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "serve/prompt_field.h"
#include "serve/service.h"

namespace refold {

constexpr int64_t kMostTexts = 2048;  // of one request, as with OpenAI

struct Embeddings {
    std::vector<std::vector<float>> vectors;
    int64_t tokens = 0;  // of all texts
};

// As the model configures its embeddings; token ids are used as they are. Throws ApiError: 400 that names
// `field` for a text that does not fit, and as ServedModel::encoding() and EncoderQueue::run() do.
Embeddings embed(Service& service, const ServedModel& model, std::span<const ApiPrompt> texts,
                 const char* field, TextEncoder::TooLong too_long = TextEncoder::TooLong::as_configured);

// Throws ApiError (400) for the field 'dimensions', unless it is what the embeddings have: they may be cut
// only where the model was trained for it, which its files do not say.
void check_dimensions(const std::optional<int64_t>& dimensions, const ServedModel& model);

// A JSON array of numbers, each as short as its float32 allows.
std::string json_array(std::span<const float> values);

}  // namespace refold
