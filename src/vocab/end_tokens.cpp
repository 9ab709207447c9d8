#include "vocab/end_tokens.h"

#include <algorithm>

#include "core/files.h"
#include "core/stored_text.h"
#include "vocab/gguf_arrays.h"
#include "vocab/json_view.h"
#include "vocab/vocabulary.h"

namespace refold {
namespace {

constexpr const char* kFile = "generation_config.json";
constexpr const char* kField = "eos_token_id";

// Keys of libllama for one end each.
constexpr const char* kLlamaKeys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                      "tokenizer.ggml.eom_token_id"};

void check_object(const std::string& text, const std::string& label) {
    JsonView(parse_vocabulary_json(text, label), label).object();
}

}  // namespace

std::vector<int32_t> named_end_tokens(const TokenizerSettings& settings, int64_t vocab_size) {
    const auto value_of = [](const Json& file, const char* field) {
        return file.is_object() ? file.value(field, Json()) : Json();
    };
    Json named = value_of(settings.generation.is_null() ? settings.model : settings.generation, kField);
    if (named.is_null() && settings.generation.is_null())
        named = value_of(value_of(settings.model, "text_config"), kField);
    std::vector<int32_t> ids;
    for (const Json& id : named.is_array() ? named : Json::array({named})) {
        if (id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(vocab_size) &&
            std::ranges::find(ids, id.get<int32_t>()) == ids.end())
            ids.push_back(id.get<int32_t>());
    }
    return ids;
}

void keep_generation_config(const std::filesystem::path& folder, GgufMetadata& metadata) {
    const std::string file = (folder / kFile).string();
    if (!std::filesystem::exists(file)) return;
    const std::string text = read_stored_text(file);
    check_object(text, "'" + file + "'");
    metadata.set(kGenerationConfigKey, GgufValue::string(text));
}

void write_generation_config(const GgufMetadata& metadata, const std::filesystem::path& folder) {
    const std::string file = (folder / kFile).string();
    if (metadata.has(kGenerationConfigKey)) {
        const std::string text = metadata.string(kGenerationConfigKey);
        check_object(text, kGenerationConfigKey);
        write_file(file, text);
        return;
    }
    std::vector<int32_t> ends = ints_of(metadata, kEndTokensKey);
    if (ends.empty()) {
        for (const char* key : kLlamaKeys) {
            if (!metadata.has(key)) continue;
            const auto id = static_cast<int32_t>(metadata.integer(key));
            if (std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
        }
        if (ends.size() < 2) return;  // config.json says it
    }
    write_file(file, Json{{kField, ends}}.dump(2) + "\n");
}

}  // namespace refold
