#include "vocab/token_ids_of.h"

#include <string_view>

#include "core/error.h"
#include "vocab/end_tokens.h"
#include "vocab/gguf_arrays.h"
#include "vocab/hf_vocab.h"
#include "vocab/json_view.h"

namespace refold {
namespace {

constexpr const char* kCheckpointKey = "refold.checkpoint";

class Replacing {
public:
    Replacing(int64_t old_size, int64_t size, const std::function<int32_t(int32_t)>& map)
        : old_size_(old_size), size_(size), map_(map) {}

    int64_t id(int64_t id) const { return id < 0 || id >= old_size_ ? id : map_(static_cast<int32_t>(id)); }

    // Numbers, at any depth of lists: "bad_words_ids" is a list of lists.
    void numbers(Json& json) const {
        if (json.is_number_integer()) {
            json = id(json.get<int64_t>());
        } else if (json.is_array()) {
            for (Json& item : json) numbers(item);
        }
    }

    void added_tokens(Json& json) const {
        if (!json.is_array()) return;
        for (Json& token : json) {
            if (token.is_object() && token.contains("id")) numbers(token["id"]);
        }
    }

    // "ids": [1], and ["</s>", 2] of BERT and RoBERTa.
    void post_processor(Json& json) const {
        if (json.is_object()) {
            for (auto& [name, value] : json.items()) {
                if (name == "ids") {
                    numbers(value);
                } else {
                    post_processor(value);
                }
            }
        } else if (json.is_array()) {
            const bool pair = json.size() == 2 && json[0].is_string() && json[1].is_number_integer();
            if (pair) numbers(json[1]);
            for (Json& item : json) post_processor(item);
        }
    }

    void config(Json& json) const {
        if (!json.is_object()) return;
        for (auto& [name, value] : json.items()) {
            if (name == "vocab_size" && value == old_size_) {
                value = size_;
            } else if (names_ids(name)) {
                numbers(value);
            } else {
                config(value);
            }
        }
    }

    static bool names_ids(std::string_view name) {
        return name.ends_with("token_id") || name.ends_with("token_ids") || name.ends_with("_tokens_ids") ||
               name.ends_with("token_index") || name.ends_with("suppress_tokens") || name == "bad_words_ids";
    }

private:
    int64_t old_size_, size_;
    const std::function<int32_t(int32_t)>& map_;
};

bool is_32_bits(const GgufArray& array) {
    return array.element == GgufType::U32 || array.element == GgufType::I32;
}

void replace_key(GgufMetadata& metadata, const std::string& key, GgufValue value,
                 const Replacing& replacing) {
    if (auto* number = std::get_if<uint64_t>(&value.value)) {
        *number = static_cast<uint64_t>(replacing.id(static_cast<int64_t>(*number)));
    } else if (auto* integer = std::get_if<int64_t>(&value.value)) {
        *integer = replacing.id(*integer);
    } else if (const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&value.value);
               array != nullptr && (*array)->element == GgufType::I32) {
        std::vector<int32_t> ids = ints_of(metadata, key);
        for (int32_t& id : ids) id = static_cast<int32_t>(replacing.id(id));
        value = int_array(ids);
    } else {
        fail(ErrorCode::unsupported, "tokenizer", "'{}' is not a token id or a list of them (I32)", key);
    }
    metadata.set(key, std::move(value));
}

}  // namespace

void replace_token_ids(GgufMetadata& metadata, int64_t old_size, int64_t size,
                       const std::function<int32_t(int32_t)>& map) {
    const Replacing replacing(old_size, size, map);
    const auto entries = metadata.entries();  // a copy: set() writes to the original
    for (const auto& [key, value] : entries) {
        if (Replacing::names_ids(key)) {
            replace_key(metadata, key, value, replacing);
            continue;
        }
        const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&value.value);
        const bool by_token = array != nullptr && (*array)->count == static_cast<uint64_t>(old_size);
        if (array == nullptr || by_token || !key.starts_with("tokenizer.") || !is_32_bits(**array)) continue;
        fail(ErrorCode::unsupported, "tokenizer",
             "'{}' has {} numbers: neither one for each of the {} tokens nor known to be token ids", key,
             (*array)->count, old_size);
    }
    if (metadata.has(kTokenizerJsonKey)) {
        Json json = parse_vocabulary_json(metadata.string(kTokenizerJsonKey), kTokenizerJsonKey);
        if (json.contains("added_tokens")) replacing.added_tokens(json["added_tokens"]);
        if (json.contains("post_processor")) replacing.post_processor(json["post_processor"]);
        metadata.set(kTokenizerJsonKey, GgufValue::string(json.dump()));
    }
    if (metadata.has(kGenerationConfigKey)) {
        Json json = parse_vocabulary_json(metadata.string(kGenerationConfigKey), kGenerationConfigKey);
        replacing.config(json);
        metadata.set(kGenerationConfigKey, GgufValue::string(json.dump(2)));
    }
    if (metadata.has(kCheckpointKey)) {
        Json record = parse_vocabulary_json(metadata.string(kCheckpointKey), kCheckpointKey);
        if (record.contains("config") && record["config"].is_string()) {
            Json config = parse_vocabulary_json(record["config"].get<std::string>(), "config.json");
            replacing.config(config);
            record["config"] = config.dump(2);
        }
        metadata.set(kCheckpointKey, GgufValue::string(record.dump()));
    }
}

}  // namespace refold
