#include "serve/ollama/model.h"

#include <cmath>
#include <ctime>

#include "core/sha256.h"
#include "serve/described.h"
#include "serve/reply.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

// "134.5M"
std::string short_count(double parameters) {
    const char* unit = "";
    for (const char* const larger : {"K", "M", "B", "T"}) {
        if (parameters < 1000) break;
        parameters /= 1000;
        unit = larger;
    }
    return fmt::format("{:.{}f}{}", parameters, *unit == '\0' ? 0 : 1, unit);
}

// Empty for a model that was never loaded.
std::string family(const ModelInfo& info) {
    return info.description.is_object() ? info.description.value("architecture", "") : "";
}

}  // namespace

std::string ollama_error_body(const ApiError& error) { return dump({{"error", error.message}}) + "\n"; }

std::string untagged(const std::string& name) {
    constexpr std::string_view kTag = ":latest";
    return name.ends_with(kTag) ? name.substr(0, name.size() - kTag.size()) : name;
}

std::string utc_time(std::chrono::system_clock::time_point time) {
    const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch());
    const std::time_t seconds = microseconds.count() / 1'000'000;
    std::tm utc{};
    gmtime_r(&seconds, &utc);
    char text[32] = "";
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    return fmt::format("{}.{:06}Z", text, microseconds.count() % 1'000'000);
}

Json ollama_details(const ModelInfo& info) {
    return {{"parent_model", ""},
            {"format", "gguf"},
            {"family", family(info)},
            {"families", {family(info)}},
            {"parameter_size", short_count(static_cast<double>(described(info, "/stored/parameters")))},
            {"quantization_level", ""}};
}

Json ollama_model(const ModelInfo& info) {
    // The file's own hash would take a while; this one tells models apart.
    const std::string known = info.name + dump(info.description);
    return {{"name", info.name},
            {"model", info.name},
            {"size", described(info, "/stored/bytes")},
            {"digest", sha256_hex(std::as_bytes(std::span(known)))},
            {"details", ollama_details(info)}};
}

Json gguf_keys(const ModelInfo& info) {
    Json out = {{"general.architecture", family(info)},
                {"general.parameter_count", described(info, "/stored/parameters")}};
    constexpr std::pair<const char*, const char*> kKeys[] = {{"/context_length", "context_length"},
                                                             {"/n_embd", "embedding_length"},
                                                             {"/layers", "block_count"},
                                                             {"/n_head", "attention.head_count"},
                                                             {"/n_head_kv", "attention.head_count_kv"},
                                                             {"/n_vocab", "vocab_size"}};
    for (const auto& [pointer, key] : kKeys)
        if (const uint64_t value = described(info, pointer); value > 0) out[family(info) + "." + key] = value;
    return out;
}

}  // namespace refold
