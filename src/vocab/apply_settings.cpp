// Changes a tokenizer as transformers does after reading its file.
#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "core/error.h"
#include "vocab/vocabulary.h"

namespace refold {
namespace {

constexpr const char* kSpecialNames[] = {"bos", "eos", "unk", "sep", "pad", "cls", "mask"};

class AddedTokenList {
public:
    explicit AddedTokenList(Vocabulary& vocabulary, int64_t vocab_size)
        : vocabulary_(vocabulary), vocab_size_(vocab_size) {
        for (const Json& json : vocabulary.skeleton["added_tokens"]) {
            const auto id = json.at("id").get<int32_t>();
            tokens_[id] = read_added_token(JsonView(json, "added_tokens"), id);
        }
    }

    bool has(const std::string& content) const {
        return std::any_of(tokens_.begin(), tokens_.end(),
                           [&](const auto& t) { return t.second.content == content; });
    }
    bool has(int32_t id) const { return tokens_.contains(id); }

    void put(AddedToken token) {
        vocabulary_.add(token, vocab_size_);
        tokens_[token.id] = std::move(token);
    }

    void write() const {
        Json& list = vocabulary_.skeleton["added_tokens"] = Json::array();
        for (const auto& [id, token] : tokens_) list.push_back(to_json(token));
        Json& model = vocabulary_.skeleton["model"];
        if (!model.is_object() || model.value("type", "") == "Unigram") return;
        for (const int32_t id : vocabulary_.added_only) model[kAddedOnly].push_back(tokens_.at(id).content);
    }

private:
    Vocabulary& vocabulary_;
    int64_t vocab_size_;
    std::map<int32_t, AddedToken> tokens_;
};

JsonView config_of(const TokenizerSettings& settings) {
    return {settings.config, "'" + (settings.folder / "tokenizer_config.json").string() + "':"};
}

void add_described(const TokenizerSettings& settings, AddedTokenList& tokens) {
    const auto described = config_of(settings).find("added_tokens_decoder");
    if (!described) {
        for (const auto& [content, id] : settings.added.items()) {
            const JsonView view(id, "'" + (settings.folder / "added_tokens.json").string() + "': " + content);
            const auto number = static_cast<int32_t>(view.integer(0, INT32_MAX));
            if (!tokens.has(number)) tokens.put({number, content});
        }
        return;
    }
    for (const auto& [key, json] : described->object().json().items()) {
        const JsonView view(json, described->where() + "." + key);
        int32_t id = -1;
        const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
        if (error != std::errc() || end != key.data() + key.size() || id < 0)
            view.expected("an id as the key");
        tokens.put(read_added_token(view, id));
    }
}

void add_special(const JsonView& token, bool mask_takes_space, const Vocabulary& vocabulary,
                 AddedTokenList& tokens) {
    const bool described = token.json().is_object();
    const std::string content = described ? token.at("content").string() : token.string();
    const auto id = vocabulary.find(content);
    if (!id || content.empty() || tokens.has(content)) return;
    AddedToken added{*id, content};
    if (described) added = read_added_token(token, *id);
    added.special = true;
    added.normalized = described && token.boolean("normalized", false);
    added.lstrip = added.lstrip || mask_takes_space;
    tokens.put(std::move(added));
}

void add_specials(const TokenizerSettings& settings, const Vocabulary& vocabulary, AddedTokenList& tokens) {
    const std::string kind = settings.tokenizer_class();
    static const std::set<std::string> with_mask_after_space{
        "RobertaTokenizer",   "BartTokenizer",  "LongformerTokenizer", "XLMRobertaTokenizer",
        "CamembertTokenizer", "MBartTokenizer", "MBart50Tokenizer",    "AlbertTokenizer"};
    const bool takes_space = with_mask_after_space.contains(kind);
    const JsonView map(settings.special_map,
                       "'" + (settings.folder / "special_tokens_map.json").string() + "':");
    // The map comes first because it has the tokens' flags; the configuration is the fallback.
    for (const JsonView& file : {map, config_of(settings)}) {
        for (const std::string name : kSpecialNames) {
            const auto token = file.find(name + "_token");
            if (token) add_special(*token, takes_space && name == "mask", vocabulary, tokens);
        }
        const auto more = file.find("additional_special_tokens");
        for (size_t i = 0; more && i < more->array().size(); ++i)
            add_special(more->at(i), false, vocabulary, tokens);
    }
}

// The special tokens that a class has when no file names them.
void add_class_specials(const TokenizerSettings& settings, const Vocabulary& vocabulary,
                        AddedTokenList& tokens) {
    static const std::map<std::string, std::vector<std::string>> by_class{
        {"BertTokenizer", {"[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"}},
        {"GPT2Tokenizer", {"<|endoftext|>"}},
        {"CodeGenTokenizer", {"<|endoftext|>"}},
        {"Qwen2Tokenizer", {"<|endoftext|>"}},
        {"RobertaTokenizer", {"<s>", "</s>", "<unk>", "<pad>", "<mask>"}},
        {"LlamaTokenizer", {"<unk>", "<s>", "</s>"}},
        {"GemmaTokenizer", {"<unk>", "<bos>", "<eos>", "<pad>"}},
    };
    const std::string kind = settings.tokenizer_class();
    const auto known = by_class.find(kind);
    if (known == by_class.end()) return;
    for (const std::string& token : known->second) {
        const Json json = token;
        add_special(JsonView(json, "special token"), kind == "RobertaTokenizer" && token == "<mask>",
                    vocabulary, tokens);
    }
}

std::vector<SpecialToken> token_list(const TokenizerSettings& settings, const Vocabulary& vocabulary,
                                     bool wanted, const char* name, const char* fallback) {
    if (!wanted) return {};
    const auto own = vocabulary.specials.find(name);
    const std::string token =
        settings.special(name).value_or(own == vocabulary.specials.end() ? fallback : own->second);
    const auto id = vocabulary.find(token);
    if (!id) return {};
    return {{*id, token}};
}

// These classes put the language of the text beside its end, or before the text.
void apply_language(const TokenizerSettings& settings, Vocabulary& vocabulary) {
    const std::string kind = settings.tokenizer_class();
    if (kind != "MBartTokenizer" && kind != "MBart50Tokenizer") return;
    const std::string language = config_of(settings).string("src_lang", "en_XX");
    const auto id = vocabulary.find(language), end = vocabulary.find("</s>");
    if (!id || !end) {
        fail(ErrorCode::input, "tokenizer", "'{}' has no token for the source language '{}'",
             vocabulary.source, language);
    }
    const SpecialToken eos{*end, "</s>"}, code{*id, language};
    Json processor = kind == "MBartTokenizer" ? template_processor({}, {eos, code}, false)
                                              : template_processor({code}, {eos}, false);
    // The two texts of a pair stand side by side.
    processor["pair"] = processor["single"];
    for (size_t i = 0; i < processor["pair"].size(); ++i) {
        if (!processor["pair"][i].contains("Sequence")) continue;
        processor["pair"].insert(processor["pair"].begin() + static_cast<ptrdiff_t>(i) + 1,
                                 Json{{"Sequence", {{"id", "B"}, {"type_id", 0}}}});
        break;
    }
    vocabulary.skeleton["post_processor"] = processor;
}

// These classes build their post-processor from two flags and ignore the one in the file.
void apply_flags(const TokenizerSettings& settings, Vocabulary& vocabulary) {
    const std::string kind = settings.tokenizer_class();
    const bool gemma = kind == "GemmaTokenizer";
    const bool by_flags =
        gemma || kind == "LlamaTokenizer" || kind == "CodeLlamaTokenizer" || vocabulary.merges_by_score();
    if (!by_flags) return;
    const JsonView config = config_of(settings);
    vocabulary.skeleton["post_processor"] =
        template_processor(token_list(settings, vocabulary, config.boolean("add_bos_token", true), "bos",
                                      gemma ? "<bos>" : "<s>"),
                           token_list(settings, vocabulary, config.boolean("add_eos_token", false), "eos",
                                      gemma ? "<eos>" : "</s>"));
}

void apply_normalizer_options(const TokenizerSettings& settings, Vocabulary& vocabulary) {
    const JsonView config = config_of(settings);
    Json& normalizer = vocabulary.skeleton["normalizer"];
    if (settings.tokenizer_class() == "BertTokenizer" && normalizer.is_object() &&
        normalizer.value("type", Json()) == "BertNormalizer") {
        for (const auto& [option, field] : {std::pair{"do_lower_case", "lowercase"},
                                            {"strip_accents", "strip_accents"},
                                            {"tokenize_chinese_chars", "handle_chinese_chars"}}) {
            if (const auto value = config.find(option)) normalizer[field] = value->boolean();
        }
    }
    const std::string kind = settings.tokenizer_class();
    Json& pre = vocabulary.skeleton["pre_tokenizer"];
    const auto prefix = config.find("add_prefix_space");
    if (prefix && (kind == "GPT2Tokenizer" || kind == "RobertaTokenizer") && pre.is_object() &&
        pre.value("type", Json()) == "ByteLevel") {
        pre["add_prefix_space"] = prefix->boolean();
    }
}

}  // namespace

void apply_settings(const TokenizerSettings& settings, int64_t vocab_size, Vocabulary& vocabulary) {
    AddedTokenList tokens(vocabulary, vocab_size);
    add_described(settings, tokens);
    add_specials(settings, vocabulary, tokens);
    add_class_specials(settings, vocabulary, tokens);
    tokens.write();
    apply_flags(settings, vocabulary);
    apply_language(settings, vocabulary);
    apply_normalizer_options(settings, vocabulary);
}

}  // namespace refold
