// Turns a vocabulary into the keys that libllama and refold read.
#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "vocab/base64.h"
#include "vocab/decoder.h"
#include "vocab/end_tokens.h"
#include "vocab/gguf_arrays.h"
#include "vocab/hf_vocab.h"
#include "vocab/normalizer.h"
#include "vocab/post_processor.h"
#include "vocab/pre_tokenizers.h"
#include "vocab/vocabulary.h"

namespace refold {
namespace {

// transformers' name, the GGUF key, the name in generation_config.json.
struct SpecialKey {
    const char *name, *key;
};
constexpr SpecialKey kSpecialKeys[] = {
    {"bos", "tokenizer.ggml.bos_token_id"},     {"eos", "tokenizer.ggml.eos_token_id"},
    {"unk", "tokenizer.ggml.unknown_token_id"}, {"sep", "tokenizer.ggml.seperator_token_id"},
    {"pad", "tokenizer.ggml.padding_token_id"}, {"cls", "tokenizer.ggml.cls_token_id"},
    {"mask", "tokenizer.ggml.mask_token_id"},
};

// Recognizes control tokens that a model does not mark as special, by their spelling, as llama.cpp's
// converter does.
bool looks_special(const std::string& token) {
    const auto between = [&](const char* begin, const char* end) {
        return token.starts_with(begin) && token.ends_with(end);
    };
    return token == "<pad>" || token == "<mask>" || token == "<2mass>" || token == "[@BOS@]" ||
           between("<|", "|>") || between("<\uFF5C", "\uFF5C>") || between("<unused", ">");
}

std::optional<int32_t> unknown_id(const Vocabulary& vocabulary) {
    const Json& model = vocabulary.skeleton["model"];
    if (const Json id = model.value("unk_id", Json()); id.is_number()) return id.get<int32_t>();
    const Json token = model.value("unk_token", Json());
    return token.is_string() ? vocabulary.find(token) : std::nullopt;
}

std::vector<int32_t> token_types(const Vocabulary& vocabulary, size_t size) {
    std::vector<int32_t> types(size, kUnusedToken);
    const Json& model = vocabulary.skeleton["model"];
    const bool bytes = model.value("byte_fallback", false);
    for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
        const auto& token = vocabulary.tokens[id];
        if (token) types[id] = bytes && byte_of_token(*token) >= 0 ? kByteToken : kNormalToken;
    }
    for (const Json& added : vocabulary.skeleton["added_tokens"]) {
        const bool control = added["special"] || looks_special(added["content"]);
        types[added["id"].get<size_t>()] = control ? kControlToken : kUserDefinedToken;
    }
    if (vocabulary.model == "llama" || vocabulary.model == "t5") {
        if (const auto unknown = unknown_id(vocabulary)) types[static_cast<size_t>(*unknown)] = kUnknownToken;
    }
    return types;
}

std::vector<std::string> token_texts(const Vocabulary& vocabulary, const std::vector<int32_t>& types) {
    std::vector<std::string> texts(types.size());
    std::unordered_set<std::string> seen;
    for (size_t id = 0; id < texts.size(); ++id) {
        const bool known = id < vocabulary.tokens.size() && vocabulary.tokens[id];
        const std::string token = known ? *vocabulary.tokens[id] : fmt::format("[PAD{}]", id);
        texts[id] = llama_spelling(vocabulary.model, token, static_cast<TokenType>(types[id]));
        // libllama cuts a token at a zero byte, renames an empty token, and aborts the process when two are
        // equal.
        std::string llama_text = texts[id].c_str();
        if (llama_text.empty()) llama_text = fmt::format("[EMPTY_{}]", id);
        if (!seen.insert(llama_text).second) {
            fail(ErrorCode::unsupported, "tokenizer",
                 "'{}': token {} ('{}') is there twice in GGUF's spelling", vocabulary.source, id, token);
        }
    }
    return texts;
}

// SentencePiece's own scores, else scores that make libllama, which merges by score, follow the order of the
// merges.
std::vector<float> token_scores(const Vocabulary& vocabulary, size_t size) {
    std::vector<float> scores(vocabulary.scores.begin(), vocabulary.scores.end());
    if (!scores.empty()) {
        scores.resize(size, -10000.0F);
        return scores;
    }
    std::unordered_map<std::string, float> by_token;
    float rank = 0;
    for (const std::string& merge : vocabulary.merges) {
        const size_t space = merge.find(' ', 1);
        if (space == std::string::npos) continue;
        by_token.emplace(merge.substr(0, space) + merge.substr(space + 1), -rank);
        ++rank;
    }
    scores.assign(size, -rank - 1);
    for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
        if (!vocabulary.tokens[id]) continue;
        const auto found = by_token.find(*vocabulary.tokens[id]);
        if (found != by_token.end()) scores[id] = found->second;
    }
    return scores;
}

bool are_floats(const std::vector<double>& numbers) {
    return std::all_of(numbers.begin(), numbers.end(),
                       [](double number) { return double{static_cast<float>(number)} == number; });
}

std::optional<int32_t> first_id(const Json& json, const std::string& name, int64_t vocab_size) {
    const auto it = json.find(name + "_token_id");
    if (it == json.end()) return std::nullopt;
    const Json& id = it->is_array() && !it->empty() ? it->front() : *it;
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size))
        return std::nullopt;
    return id.get<int32_t>();
}

std::map<std::string, int32_t> special_ids(const Vocabulary& vocabulary, const TokenizerSettings& settings,
                                           const PostProcessor& around, int64_t vocab_size) {
    std::map<std::string, int32_t> ids;
    const auto set = [&](const std::string& name, std::optional<int32_t> id) {
        if (id) ids.emplace(name, *id);
    };
    for (const auto& [name, key] : kSpecialKeys) {
        const auto token = settings.special(name);
        if (token) set(name, vocabulary.find(*token));
        const auto of_class = vocabulary.specials.find(name);
        if (of_class != vocabulary.specials.end()) set(name, vocabulary.find(of_class->second));
    }
    set("unk", unknown_id(vocabulary));
    if (vocabulary.model == "bert") {
        for (const auto& [name, token] :
             {std::pair{"cls", "[CLS]"}, {"sep", "[SEP]"}, {"pad", "[PAD]"}, {"mask", "[MASK]"}}) {
            set(name, vocabulary.find(token));
        }
    }
    for (const auto& [name, key] : kSpecialKeys) {
        set(name, first_id(settings.generation, name, vocab_size));
        set(name, first_id(settings.model, name, vocab_size));
        set(name, first_id(settings.model.value("text_config", Json::object()), name, vocab_size));
    }
    for (const auto& [name, other] : {std::pair{"bos", "cls"}, {"eos", "sep"}}) {
        if (ids.contains(other)) set(name, ids[other]);
    }
    if (around.single().front().id >= 0) set("bos", around.single().front().id);
    if (around.single().back().id >= 0) set("eos", around.single().back().id);
    return ids;
}

// Chat models end at more tokens than their EOS. libllama takes two by keys of their own.
void set_end_tokens(const TokenizerSettings& settings, int64_t vocab_size, int32_t eos,
                    GgufMetadata& metadata) {
    std::vector<int32_t> ends = named_end_tokens(settings, vocab_size);
    if (ends.empty() || ends == std::vector{eos}) return;
    metadata.set(kEndTokensKey, int_array(ends));
    std::erase(ends, eos);
    constexpr std::array kKeys{"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < std::min(ends.size(), kKeys.size()); ++i)
        metadata.set(kKeys[i], GgufValue::u32(static_cast<uint32_t>(ends[i])));
}

void set_special(const Vocabulary& vocabulary, const TokenizerSettings& settings, int64_t vocab_size,
                 GgufMetadata& metadata) {
    const Json& json = vocabulary.skeleton["post_processor"];
    const PostProcessor around =
        json.is_null() ? PostProcessor()
                       : PostProcessor(JsonView(json, "'" + vocabulary.source + "': post_processor"));
    if (around.single().empty()) {
        fail(ErrorCode::unsupported, "tokenizer", "'{}': the post_processor leaves no text",
             vocabulary.source);
    }
    const auto ids = special_ids(vocabulary, settings, around, vocab_size);
    for (const auto& [name, key] : kSpecialKeys) {
        if (ids.contains(name)) metadata.set(key, GgufValue::u32(static_cast<uint32_t>(ids.at(name))));
    }
    const bool before = around.single().front().id >= 0, after = around.single().back().id >= 0;
    metadata.set("tokenizer.ggml.add_bos_token", GgufValue::boolean(before));
    metadata.set("tokenizer.ggml.add_eos_token", GgufValue::boolean(after));
    if (before && after) metadata.set("tokenizer.ggml.add_sep_token", GgufValue::boolean(true));
    set_end_tokens(settings, vocab_size, ids.contains("eos") ? ids.at("eos") : -1, metadata);
}

void set_spaces(const Vocabulary& vocabulary, GgufMetadata& metadata) {
    const Json& normalizer = vocabulary.skeleton["normalizer"];
    if (vocabulary.model == "bert") {
        for (const auto& [field, key] : {std::pair{"lowercase", "tokenizer.ggml.normalizer.lowercase"},
                                         {"strip_accents", "tokenizer.ggml.normalizer.strip_accents"}}) {
            if (normalizer.is_object() && normalizer.value(field, Json()).is_boolean()) {
                metadata.set(key, GgufValue::boolean(normalizer[field]));
            }
        }
    }
    if (vocabulary.model != "llama" && vocabulary.model != "t5") return;
    bool prefix = !normalizer.is_null() && Normalizer(JsonView(normalizer, "normalizer")).prepends();
    const Json& pre = vocabulary.skeleton["pre_tokenizer"];
    if (const Json* metaspace = find_step(pre, "Metaspace")) {
        prefix = metaspace->value("add_prefix_space", Json(true)) == true &&
                 metaspace->value("prepend_scheme", Json("always")) != "never";
    }
    bool merges_spaces = false;
    if (vocabulary.model == "t5") {
        const Json* replace = find_step(normalizer, "Replace");
        merges_spaces = replace != nullptr || find_step(pre, "WhitespaceSplit") != nullptr;
        const Json* map = find_step(normalizer, "Precompiled");
        const Json text = map == nullptr ? Json() : map->value("precompiled_charsmap", Json());
        const auto bytes = text.is_string() ? from_base64(text.get<std::string>()) : std::nullopt;
        if (bytes) metadata.set("tokenizer.ggml.precompiled_charsmap", byte_array(*bytes));
    }
    metadata.set("tokenizer.ggml.add_space_prefix", GgufValue::boolean(prefix));
    metadata.set("tokenizer.ggml.remove_extra_whitespaces", GgufValue::boolean(merges_spaces));
}

void set_chat_template(const TokenizerSettings& settings, GgufMetadata& metadata) {
    constexpr const char* kKey = "tokenizer.chat_template";
    const JsonView config(settings.config, "'" + (settings.folder / "tokenizer_config.json").string() + "':");
    const auto in_config = config.find("chat_template");
    if (settings.chat_template) {
        metadata.set(kKey, GgufValue::string(*settings.chat_template));
    } else if (in_config && in_config->json().is_string()) {
        metadata.set(kKey, GgufValue::string(in_config->string()));
    } else if (in_config) {
        std::vector<std::string> names;
        for (size_t i = 0; i < in_config->array().size(); ++i) {
            const std::string name = in_config->at(i).at("name").string();
            const GgufValue text = GgufValue::string(in_config->at(i).at("template").string());
            if (name != "default") names.push_back(name);
            metadata.set(name == "default" ? kKey : std::string(kKey) + "." + name, text);
        }
        if (!names.empty()) metadata.set("tokenizer.chat_templates", string_array(names));
    }
}

// The fields that transformers needs besides tokenizer.json, in one form for all sources.
Json kept_config(const Vocabulary& vocabulary, const TokenizerSettings& settings) {
    static const std::map<std::string, std::string> by_model{{"gpt2", "PreTrainedTokenizer"},
                                                             {"llama", "LlamaTokenizer"},
                                                             {"bert", "BertTokenizer"},
                                                             {"t5", "PreTrainedTokenizer"}};
    Json out = Json::object();
    for (const char* field :
         {"add_bos_token", "add_eos_token", "add_prefix_space", "additional_special_tokens", "extra_ids",
          "keep_accents", "legacy", "model_max_length", "padding_side", "remove_space", "src_lang",
          "tgt_lang", "truncation_side"}) {
        const auto it = settings.config.find(field);
        if (it != settings.config.end() && !it->is_null()) out[field] = *it;
    }
    const JsonView config(settings.config, "'" + (settings.folder / "tokenizer_config.json").string() + "':");
    out["clean_up_tokenization_spaces"] = config.boolean("clean_up_tokenization_spaces", false);
    const std::string kind = settings.tokenizer_class();
    const bool unknown = kind.empty() || kind == "QWenTokenizer";  // transformers has no such class
    out["tokenizer_class"] = (unknown ? by_model.at(vocabulary.model) : kind) + "Fast";
    const Json& normalizer = vocabulary.skeleton["normalizer"];
    if (normalizer.is_object() && normalizer.value("type", Json()) == "BertNormalizer") {
        out["do_lower_case"] = normalizer.value("lowercase", true);
        out["strip_accents"] = normalizer.value("strip_accents", Json());
        out["tokenize_chinese_chars"] = normalizer.value("handle_chinese_chars", true);
    }
    return out;
}

}  // namespace

void set_metadata(const Vocabulary& vocabulary, const TokenizerSettings& settings, int64_t vocab_size,
                  GgufMetadata& metadata) {
    const auto size = static_cast<size_t>(vocab_size);
    const std::vector<int32_t> types = token_types(vocabulary, size);
    std::string pre = "default";
    if (vocabulary.model == "gpt2") {
        const Json& json = vocabulary.skeleton["pre_tokenizer"];
        pre = recognize_pre_tokenizer(JsonView(json, "'" + vocabulary.source + "': pre_tokenizer"),
                                      vocabulary.skeleton["model"]["ignore_merges"])
                  .name;
        const Json& post = vocabulary.skeleton["post_processor"];
        const bool roberta = post.is_object() && post.value("type", Json()) == "RobertaProcessing";
        if (pre == "gpt-2" && roberta) pre = "roberta-bpe";
    }
    metadata.set("tokenizer.ggml.model", GgufValue::string(vocabulary.model));
    metadata.set("tokenizer.ggml.pre", GgufValue::string(pre));
    metadata.set("tokenizer.ggml.tokens", string_array(token_texts(vocabulary, types)));
    if (vocabulary.model == "llama" || vocabulary.model == "t5")
        metadata.set("tokenizer.ggml.scores", float_array(token_scores(vocabulary, size)));
    if (vocabulary.model == "t5" && !are_floats(vocabulary.scores))
        metadata.set(kTokenizerScoresKey, double_array(vocabulary.scores));
    metadata.set("tokenizer.ggml.token_type", int_array(types));
    if (vocabulary.model == "gpt2" || (vocabulary.model == "llama" && !vocabulary.merges_by_score())) {
        metadata.set("tokenizer.ggml.merges", string_array(vocabulary.merges));
    }
    set_special(vocabulary, settings, vocab_size, metadata);
    set_spaces(vocabulary, metadata);
    set_chat_template(settings, metadata);
    metadata.set(kTokenizerJsonKey, GgufValue::string(vocabulary.skeleton.dump()));
    metadata.set(kTokenizerConfigKey, GgufValue::string(kept_config(vocabulary, settings).dump()));
}

}  // namespace refold
