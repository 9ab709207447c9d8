#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "core/files.h"
#include "core/text.h"
#include "vocab/added_tokens.h"
#include "vocab/base64.h"
#include "vocab/decoder.h"
#include "vocab/gguf_arrays.h"
#include "vocab/hf_vocab.h"
#include "vocab/pre_tokenizers.h"
#include "vocab/vocabulary.h"

namespace refold {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::pair<const char*, const char*> kSpecialTokens[] = {
    {"bos_token", "tokenizer.ggml.bos_token_id"},     {"eos_token", "tokenizer.ggml.eos_token_id"},
    {"unk_token", "tokenizer.ggml.unknown_token_id"}, {"sep_token", "tokenizer.ggml.seperator_token_id"},
    {"pad_token", "tokenizer.ggml.padding_token_id"}, {"cls_token", "tokenizer.ggml.cls_token_id"},
    {"mask_token", "tokenizer.ggml.mask_token_id"},
};

// A checked GGUF vocabulary.
struct GgufVocabulary {
    const GgufMetadata& metadata;
    std::string model;
    std::vector<std::string> tokens;
    std::vector<int32_t> types;
    std::vector<float> scores;

    std::optional<SpecialToken> special(const char* key) const {
        if (!metadata.has(key)) return std::nullopt;
        const uint64_t id = metadata.integer(key);
        if (id >= tokens.size()) {
            fail(ErrorCode::input, "tokenizer", "'{}' is {}, but there are {} tokens", key, id,
                 tokens.size());
        }
        return SpecialToken{static_cast<int32_t>(id), tokens[id]};
    }
    bool is_padding(size_t id) const {
        return types[id] == kUnusedToken && tokens[id] == fmt::format("[PAD{}]", id);
    }
};

GgufVocabulary read_vocabulary(const GgufMetadata& metadata) {
    GgufVocabulary out{metadata,
                       metadata.string("tokenizer.ggml.model"),
                       {},
                       {},
                       floats_of(metadata, "tokenizer.ggml.scores")};
    if (out.model != "gpt2" && out.model != "llama" && out.model != "bert" && out.model != "t5") {
        fail(ErrorCode::unsupported, "tokenizer",
             "tokenizer.ggml.model is '{}', only gpt2, llama, bert and t5 can be written for transformers",
             out.model);
    }
    out.tokens = hf_tokens(metadata);
    out.types = ints_of(metadata, "tokenizer.ggml.token_type");
    if (out.types.empty()) out.types.assign(out.tokens.size(), kNormalToken);
    for (size_t id = 0; id < out.tokens.size(); ++id) {
        // BERT's spelling puts "##" before padding.
        if (out.types[id] == kUnusedToken && out.tokens[id] == fmt::format("##[PAD{}]", id))
            out.tokens[id].erase(0, 2);
        if (find_invalid_utf8(out.tokens[id]) == std::string::npos) continue;
        fail(ErrorCode::unsupported, "tokenizer", "token {} is no UTF-8, which JSON cannot hold", id);
    }
    return out;
}

// Derives merges from scores as transformers does for a SentencePiece model: every split of a piece into two
// pieces, best score first.
std::vector<std::string> merges_from_scores(const GgufVocabulary& source) {
    if (source.scores.size() != source.tokens.size()) {
        fail(ErrorCode::input, "tokenizer", "got {} tokens and {} scores, expected as many",
             source.tokens.size(), source.scores.size());
    }
    std::unordered_map<std::string_view, size_t> ids;
    for (size_t id = 0; id < source.tokens.size(); ++id) {
        if (source.types[id] == kNormalToken) ids.emplace(source.tokens[id], id);
    }
    struct Merge {
        float score;
        size_t left_size, right_size, left, right;
    };
    std::vector<Merge> merges;
    for (size_t id = 0; id < source.tokens.size(); ++id) {
        const std::string_view token = source.tokens[id];
        if (source.types[id] != kNormalToken) continue;
        for (size_t cut = 1; cut < token.size(); ++cut) {
            const auto left = ids.find(token.substr(0, cut)), right = ids.find(token.substr(cut));
            if (left == ids.end() || right == ids.end()) continue;
            merges.push_back({source.scores[id], cut, token.size() - cut, left->second, right->second});
        }
    }
    std::sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
        return std::tuple(-a.score, b.left_size, b.right_size, a.left, a.right) <
               std::tuple(-b.score, a.left_size, a.right_size, b.left, b.right);
    });
    std::vector<std::string> out;
    for (const Merge& m : merges) out.push_back(source.tokens[m.left] + " " + source.tokens[m.right]);
    return out;
}

Json added_from_types(const GgufVocabulary& source) {
    // transformers' classes of these kinds let the mask swallow the space before it.
    const bool takes_space =
        source.metadata.string("tokenizer.ggml.pre", "") == "roberta-bpe" || source.model == "t5";
    const auto mask = takes_space ? source.special("tokenizer.ggml.mask_token_id") : std::nullopt;
    Json list = Json::array();
    for (size_t id = 0; id < source.tokens.size(); ++id) {
        const int32_t type = source.types[id];
        const bool special = type == kControlToken || type == kUnknownToken;
        if (!special && type != kUserDefinedToken) continue;
        AddedToken token{static_cast<int32_t>(id), source.tokens[id]};
        token.special = special;
        token.lstrip = mask && mask->id == token.id;
        token.normalized = token.lstrip && source.model == "t5" && token.content == "<mask>";
        list.push_back(to_json(token));
    }
    return list;
}

Json default_unigram(const GgufVocabulary& source, const std::optional<SpecialToken>& unknown) {
    UnigramSkeleton options;
    options.char_map = base64(bytes_of(source.metadata, "tokenizer.ggml.precompiled_charsmap"));
    options.merges_spaces = source.metadata.boolean("tokenizer.ggml.remove_extra_whitespaces", true);
    options.prepend_scheme =
        source.metadata.boolean("tokenizer.ggml.add_space_prefix", true) ? "always" : "never";
    if (unknown) options.unknown = unknown->id;
    options.size = source.tokens.size();
    if (source.scores.size() != source.tokens.size()) return unigram_skeleton(options);
    // Added tokens and padding come after the model's own tokens and have no score.
    while (options.size > 0 && source.scores[options.size - 1] <= -10000.0F &&
           source.types[options.size - 1] != kNormalToken) {
        --options.size;
    }
    return unigram_skeleton(options);
}

// For a vocabulary that another program wrote: reproduces what libllama does with it.
Json default_skeleton(const GgufVocabulary& source) {
    const GgufMetadata& metadata = source.metadata;
    const auto unknown = source.special("tokenizer.ggml.unknown_token_id");
    Json out;
    bool bos = true;
    if (source.model == "gpt2") {
        const std::string pre = metadata.string("tokenizer.ggml.pre", "");
        const NamedPreTokenizer named = pre_tokenizer_named(pre);
        out = byte_level_skeleton(named.pre_tokenizer, named.normalizer, named.ignore_merges);
        bos = named.ignore_merges;  // libllama assumes this for Llama 3
    } else if (source.model == "llama") {
        const bool bytes =
            std::any_of(source.types.begin(), source.types.end(), [](int32_t t) { return t == kByteToken; });
        out = sentencepiece_skeleton(metadata.boolean("tokenizer.ggml.add_space_prefix", true), bytes,
                                     unknown ? unknown->content : "<unk>");
    } else if (source.model == "t5") {
        out = default_unigram(source, unknown);
    } else {
        const bool lower = metadata.boolean("tokenizer.ggml.normalizer.lowercase", true);
        out = word_piece_skeleton(lower, metadata.boolean("tokenizer.ggml.normalizer.strip_accents", lower),
                                  true, unknown ? unknown->content : "[UNK]");
    }
    out["added_tokens"] = added_from_types(source);
    const auto begin = source.special("tokenizer.ggml.bos_token_id");
    const auto end = source.special(source.model == "bert" ? "tokenizer.ggml.seperator_token_id"
                                                           : "tokenizer.ggml.eos_token_id");
    if (source.model == "bert") {
        if (begin && end) out["post_processor"] = bert_processor("BertProcessing", *begin, *end);
        return out;
    }
    const bool unigram = source.model == "t5";
    std::vector<SpecialToken> before, after;
    if (begin && metadata.boolean("tokenizer.ggml.add_bos_token", bos && !unigram)) before.push_back(*begin);
    if (end && metadata.boolean("tokenizer.ggml.add_eos_token", unigram)) after.push_back(*end);
    const bool encoder = !before.empty() && !after.empty();
    const bool roberta = metadata.string("tokenizer.ggml.pre", "") == "roberta-bpe" || unigram;
    if (encoder && unigram && begin->content == "[CLS]") {
        out["post_processor"] = bert_processor("BertProcessing", *begin, *end);
    } else if (encoder && roberta) {
        out["post_processor"] = bert_processor("RobertaProcessing", *begin, *end);
    } else if (!before.empty() || !after.empty()) {
        out["post_processor"] = template_processor(before, after, !unigram);
    }
    return out;
}

// The texts of `model` that are no tokens of its own, if their ids follow those of its own: Hugging Face's
// tokenizers number such tokens so.
std::unordered_set<std::string> only_added(const GgufVocabulary& source, const Json& model) {
    std::unordered_set<std::string> out;
    const Json listed = model.value(kAddedOnly, Json::array());
    for (const Json& token : listed)
        if (token.is_string()) out.insert(token.get<std::string>());
    bool after = false;
    for (size_t id = 0; id < source.tokens.size(); ++id) {
        if (source.is_padding(id)) continue;
        const bool added = out.contains(source.tokens[id]);
        if (after && (!added || source.is_padding(id - 1))) return {};
        after = added;
    }
    return out;
}

OrderedJson vocabulary_of(const GgufVocabulary& source, const Json& added, const Json& model) {
    const std::unordered_set<std::string> others = only_added(source, model);
    OrderedJson vocab = OrderedJson::object();
    auto& entries = vocab.get_ref<OrderedJson::object_t&>();
    std::unordered_set<std::string> seen;  // lookup in an ordered object is linear
    for (size_t id = 0; id < source.tokens.size(); ++id) {
        if (!source.is_padding(id) && seen.insert(source.tokens[id]).second &&
            !others.contains(source.tokens[id]))
            entries.emplace_back(source.tokens[id], id);
    }
    size_t own = 0;
    for (const auto& token : added) own += seen.contains(token["content"].get<std::string>()) ? 1 : 0;
    if (own != added.size())
        fail(ErrorCode::input, "tokenizer", "an added token is no token of the vocabulary");
    return vocab;
}

OrderedJson scored_vocabulary(const GgufVocabulary& source, const JsonView& model) {
    const std::vector<double> exact = doubles_of(source.metadata, kTokenizerScoresKey);
    const std::vector<double> scores =
        exact.empty() ? std::vector<double>(source.scores.begin(), source.scores.end()) : exact;
    const auto last = static_cast<int64_t>(std::min(scores.size(), source.tokens.size()));
    const auto own = static_cast<size_t>(model.at(kOwnSize).integer(0, last));
    OrderedJson vocab = OrderedJson::array();
    for (size_t id = 0; id < own; ++id) vocab.push_back({source.tokens[id], scores[id]});
    return vocab;
}

OrderedJson tokenizer_json(const GgufVocabulary& source, const Json& skeleton) {
    OrderedJson out{{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
    for (const char* field :
         {"added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"}) {
        out[field] = skeleton.value(field, Json());
    }
    if (!out["added_tokens"].is_array()) out["added_tokens"] = OrderedJson::array();
    OrderedJson& model = out["model"];
    if (!model.is_object()) fail(ErrorCode::input, "tokenizer", "'{}' has no model", kTokenizerJsonKey);
    if (source.model == "t5") {
        model["vocab"] = scored_vocabulary(source, JsonView(skeleton, kTokenizerJsonKey).at("model"));
        model.erase(kOwnSize);
        return out;
    }
    model["vocab"] = vocabulary_of(source, skeleton["added_tokens"], skeleton["model"]);
    model.erase(kAddedOnly);
    if (source.model == "bert") return out;
    for (const char* field : {"continuing_subword_prefix", "end_of_word_suffix", "dropout"})
        model[field] = nullptr;
    const bool listed = source.metadata.has("tokenizer.ggml.merges");
    model["merges"] =
        listed ? strings_of(source.metadata, "tokenizer.ggml.merges") : merges_from_scores(source);
    return out;
}

OrderedJson special_tokens(const GgufVocabulary& source, const Json& added) {
    OrderedJson out = OrderedJson::object();
    for (const auto& [name, key] : kSpecialTokens) {
        const auto token = source.special(key);
        if (!token) continue;
        out[name] = token->content;
        for (const auto& description : added) {
            if (description["content"] != token->content) continue;
            out[name] = description;
            for (const char* field : {"id", "special"}) out[name].erase(field);
        }
    }
    return out;
}

// Keeps transformers' class defaults from overriding tokenizer.json.
Json default_config(const std::string& model, const Json& skeleton) {
    static const std::map<std::string, const char*> classes{{"gpt2", "PreTrainedTokenizerFast"},
                                                            {"llama", "LlamaTokenizerFast"},
                                                            {"bert", "BertTokenizerFast"},
                                                            {"t5", "PreTrainedTokenizerFast"}};
    Json out{{"tokenizer_class", classes.at(model)}, {"clean_up_tokenization_spaces", false}};
    if (model == "bert") {
        out["do_lower_case"] = skeleton["normalizer"]["lowercase"];
        out["strip_accents"] = skeleton["normalizer"]["strip_accents"];
    }
    return out;
}

OrderedJson chat_templates(const GgufMetadata& metadata) {
    const std::string key = "tokenizer.chat_template";
    const std::string text = metadata.string(key, "");
    const auto& names = strings_of(metadata, "tokenizer.chat_templates");
    if (names.empty()) return text.empty() ? OrderedJson() : OrderedJson(text);
    OrderedJson list = OrderedJson::array();
    if (!text.empty()) list.push_back({{"name", "default"}, {"template", text}});
    for (const auto& name : names)
        list.push_back({{"name", name}, {"template", metadata.string(key + "." + name)}});
    return list;
}

OrderedJson config_json(const GgufVocabulary& source, const Json& skeleton, const OrderedJson& special) {
    const GgufMetadata& metadata = source.metadata;
    OrderedJson out = metadata.has(kTokenizerConfigKey)
                          ? parse_vocabulary_json(metadata.string(kTokenizerConfigKey), kTokenizerConfigKey)
                          : default_config(source.model, skeleton);
    if (!out.is_object()) fail(ErrorCode::input, "tokenizer", "'{}' is no JSON object", kTokenizerConfigKey);
    for (const auto& [name, token] : special.items())
        out[name] = token.is_object() ? token["content"] : token;
    for (const auto& token : skeleton["added_tokens"]) {
        OrderedJson description = token;
        description.erase("id");
        out["added_tokens_decoder"][std::to_string(token["id"].get<int64_t>())] = std::move(description);
    }
    // These classes add special tokens by the flags, not by tokenizer.json.
    if (source.model == "llama") {
        out["add_bos_token"] = metadata.boolean("tokenizer.ggml.add_bos_token", true);
        out["add_eos_token"] = metadata.boolean("tokenizer.ggml.add_eos_token", false);
    }
    if (source.model != "bert") out["model_input_names"] = {"input_ids", "attention_mask"};
    if (OrderedJson chat = chat_templates(metadata); !chat.is_null()) out["chat_template"] = std::move(chat);
    return out;
}

void write_word_list(const GgufVocabulary& source, const std::filesystem::path& file) {
    size_t size = source.tokens.size();
    while (size > 0 && source.is_padding(size - 1)) --size;
    std::string text;
    for (size_t id = 0; id < size; ++id) text += source.tokens[id] + "\n";
    write_file(file.string(), text);
}

}  // namespace

void write_hf_vocabulary(const GgufMetadata& metadata, const std::filesystem::path& folder) {
    const GgufVocabulary source = read_vocabulary(metadata);
    Json skeleton = metadata.has(kTokenizerJsonKey)
                        ? parse_vocabulary_json(metadata.string(kTokenizerJsonKey), kTokenizerJsonKey)
                        : default_skeleton(source);
    if (!skeleton.is_object())
        fail(ErrorCode::input, "tokenizer", "'{}' is no JSON object", kTokenizerJsonKey);
    if (!skeleton["added_tokens"].is_array()) skeleton["added_tokens"] = Json::array();
    const OrderedJson special = special_tokens(source, skeleton["added_tokens"]);
    try {
        write_file((folder / "tokenizer.json").string(), tokenizer_json(source, skeleton).dump(2));
        write_file((folder / "tokenizer_config.json").string(),
                   config_json(source, skeleton, special).dump(2));
        write_file((folder / "special_tokens_map.json").string(), special.dump(2));
    } catch (const Json::exception& error) {
        fail(ErrorCode::input, "tokenizer", "'{}' is malformed: {}", kTokenizerJsonKey, error.what());
    }
    if (source.model == "bert") write_word_list(source, folder / "vocab.txt");
}

}  // namespace refold
