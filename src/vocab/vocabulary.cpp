#include "vocab/vocabulary.h"

#include <algorithm>

#include "core/error.h"
#include "vocab/gguf_arrays.h"
#include "vocab/hf_vocab.h"

namespace refold {
namespace {

constexpr const char* kSpace = "\u2581";

Json special_item(const std::string& token, int type) {
    return {{"SpecialToken", {{"id", token}, {"type_id", type}}}};
}

Json sequence_item(const char* name, int type) { return {{"Sequence", {{"id", name}, {"type_id", type}}}}; }

}  // namespace

void Vocabulary::set(int64_t id, const std::string& token, int64_t vocab_size) {
    if (id < 0 || id >= vocab_size) {
        fail(ErrorCode::input, "tokenizer",
             "'{}': token '{}' has id {}, but the model's embedding has {} rows - is this the model's "
             "tokenizer?",
             source, token, id, vocab_size);
    }
    const auto index = static_cast<size_t>(id);
    if (index >= tokens.size()) tokens.resize(index + 1);
    if (tokens[index] && *tokens[index] != token) {
        fail(ErrorCode::input, "tokenizer", "'{}': id {} is both '{}' and '{}' - the file is damaged", source,
             id, *tokens[index], token);
    }
    tokens[index] = token;
}

void Vocabulary::add(const AddedToken& token, int64_t vocab_size) {
    const auto index = static_cast<size_t>(token.id);
    if (index >= tokens.size() || !tokens[index]) added_only.insert(token.id);
    set(token.id, token.content, vocab_size);
}

std::optional<int32_t> Vocabulary::find(const std::string& token) const {
    const auto it = std::find(tokens.begin(), tokens.end(), token);
    if (it == tokens.end()) return std::nullopt;
    return static_cast<int32_t>(it - tokens.begin());
}

const Json* find_step(const Json& json, const std::string& type) {
    if (!json.is_object()) return nullptr;
    if (json.value("type", Json()) == type) return &json;
    for (const char* list : {"normalizers", "pretokenizers"}) {
        const auto parts = json.find(list);
        if (parts == json.end() || !parts->is_array()) continue;
        for (const Json& part : *parts) {
            if (const Json* found = find_step(part, type)) return found;
        }
    }
    return nullptr;
}

Json unigram_model(std::optional<int32_t> unknown, bool byte_fallback, size_t size) {
    return {{"type", "Unigram"},
            {"unk_id", unknown ? Json(*unknown) : Json()},
            {"byte_fallback", byte_fallback},
            {kOwnSize, size}};
}

std::string llama_spelling(const std::string& model, const std::string& token, TokenType type) {
    if (model == "bert" && type != kControlToken) {
        return token.starts_with("##") ? token.substr(2) : kSpace + token;
    }
    if (type == kUserDefinedToken) {
        std::string text = token;
        for (size_t at = 0; (at = text.find(kSpace, at)) != std::string::npos;) text.replace(at, 3, " ");
        return text;
    }
    return token;
}

std::vector<std::string> hf_tokens(const GgufMetadata& metadata) {
    std::vector<std::string> tokens = strings_of(metadata, "tokenizer.ggml.tokens");
    const std::vector<int32_t> types = ints_of(metadata, "tokenizer.ggml.token_type");
    if (tokens.empty()) fail(ErrorCode::input, "tokenizer", "'tokenizer.ggml.tokens' is missing or empty");
    if (!types.empty() && types.size() != tokens.size()) {
        fail(ErrorCode::input, "tokenizer", "got {} tokens and {} types, expected as many of each",
             tokens.size(), types.size());
    }
    if (metadata.string("tokenizer.ggml.model") == "bert") {
        for (size_t i = 0; i < tokens.size(); ++i) {
            if (!types.empty() && types[i] == kControlToken) continue;
            tokens[i] = tokens[i].starts_with(kSpace) ? tokens[i].substr(3) : "##" + tokens[i];
        }
    }
    if (!metadata.has(kTokenizerJsonKey)) return tokens;
    const Json skeleton = parse_vocabulary_json(metadata.string(kTokenizerJsonKey), kTokenizerJsonKey);
    const auto added = JsonView(skeleton, std::string(kTokenizerJsonKey) + ":").find("added_tokens");
    for (size_t i = 0; added && i < added->array().size(); ++i) {
        const JsonView token = added->at(i);
        const auto last = static_cast<int64_t>(tokens.size()) - 1;
        tokens[static_cast<size_t>(token.at("id").integer(0, last))] = token.at("content").string();
    }
    return tokens;
}

Json byte_level_skeleton(const Json& pre_tokenizer, const Json& normalizer, bool ignore_merges) {
    const Json byte_level{
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", true}};
    return {{"added_tokens", Json::array()},
            {"normalizer", normalizer},
            {"pre_tokenizer", pre_tokenizer},
            {"post_processor", byte_level},
            {"decoder", byte_level},
            {"model",
             {{"type", "BPE"},
              {"unk_token", nullptr},
              {"byte_fallback", false},
              {"fuse_unk", false},
              {"ignore_merges", ignore_merges}}}};
}

Json sentencepiece_skeleton(bool space_prefix, bool byte_fallback, const std::string& unknown) {
    const Json replace{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}};
    Json normalizers = Json::array();
    if (space_prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
    normalizers.push_back(replace);
    Json decoders = Json::array({{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                                 {{"type", "ByteFallback"}},
                                 {{"type", "Fuse"}}});
    if (space_prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    return {{"added_tokens", Json::array()},
            {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
            {"pre_tokenizer", nullptr},
            {"post_processor", nullptr},
            {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
            {"model",
             {{"type", "BPE"},
              {"unk_token", unknown},
              {"byte_fallback", byte_fallback},
              {"fuse_unk", true},
              {"ignore_merges", false}}}};
}

Json unigram_skeleton(const UnigramSkeleton& options) {
    Json normalizers = Json::array();
    if (!options.char_map.empty())
        normalizers.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", options.char_map}});
    if (options.merges_spaces) {
        normalizers.push_back({{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}});
        normalizers.push_back({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", kSpace}});
    }
    const Json metaspace{{"type", "Metaspace"},
                         {"replacement", kSpace},
                         {"prepend_scheme", options.prepend_scheme},
                         {"split", true}};
    return {
        {"added_tokens", Json::array()}, {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
        {"pre_tokenizer", metaspace},    {"post_processor", nullptr},
        {"decoder", metaspace},          {"model", unigram_model(options.unknown, false, options.size)}};
}

Json word_piece_skeleton(bool lower_case, const Json& strip_accents, bool chinese,
                         const std::string& unknown) {
    return {{"added_tokens", Json::array()},
            {"normalizer",
             {{"type", "BertNormalizer"},
              {"clean_text", true},
              {"handle_chinese_chars", chinese},
              {"strip_accents", strip_accents},
              {"lowercase", lower_case}}},
            {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
            {"post_processor", nullptr},
            {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
            {"model",
             {{"type", "WordPiece"},
              {"unk_token", unknown},
              {"continuing_subword_prefix", "##"},
              {"max_input_chars_per_word", 100}}}};
}

Json template_processor(const std::vector<SpecialToken>& before, const std::vector<SpecialToken>& after,
                        bool types) {
    if (before.empty() && after.empty()) return nullptr;
    Json single = Json::array(), pair = Json::array(), tokens = Json::object();
    for (const bool second : {false, true}) {
        const char* const name = second ? "B" : "A";
        const int type = second && types ? 1 : 0;
        const auto add = [&](const Json& zero, const Json& typed) {
            if (!second) single.push_back(zero);
            pair.push_back(typed);
        };
        for (const auto& token : before)
            add(special_item(token.content, 0), special_item(token.content, type));
        add(sequence_item(name, 0), sequence_item(name, type));
        for (const auto& token : after)
            add(special_item(token.content, 0), special_item(token.content, type));
    }
    for (const auto* list : {&before, &after}) {
        for (const auto& [id, content] : *list) {
            tokens[content] = {{"id", content}, {"ids", {id}}, {"tokens", {content}}};
        }
    }
    return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
}

Json bert_processor(const char* type, const SpecialToken& cls, const SpecialToken& sep) {
    Json out{{"type", type},
             {"cls", Json::array({cls.content, cls.id})},
             {"sep", Json::array({sep.content, sep.id})}};
    if (std::string(type) == "RobertaProcessing") {
        out["trim_offsets"] = true;
        out["add_prefix_space"] = false;
    }
    return out;
}

}  // namespace refold
