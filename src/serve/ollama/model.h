// Models as Ollama's interface names and shows them.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "serve/service.h"

namespace refold {

// Of Ollama, whose interface this is: clients ask for it.
inline constexpr const char* kOllamaVersion = "0.12.6";

// {"error": "..."}
std::string ollama_error_body(const ApiError& error);

// A name without the tag ":latest", which models have that have no other.
std::string untagged(const std::string& name);

// "2026-11-26T14:42:21.123456Z"
std::string utc_time(std::chrono::system_clock::time_point time);

// What /api/tags, /api/ps and /api/show have in common: "name", "model", "size" and others.
nlohmann::ordered_json ollama_model(const ModelInfo& info);

// The property "details": family, number of parameters.
nlohmann::ordered_json ollama_details(const ModelInfo& info);

// What of a refold model's description has a key in GGUF files, by that key.
nlohmann::ordered_json gguf_keys(const ModelInfo& info);

}  // namespace refold
