// Reads the companions of a tokenizer file: tokenizer_config.json and others.
#include <map>

#include "core/error.h"
#include "core/stored_text.h"
#include "core/text.h"
#include "vocab/vocabulary.h"

namespace refold {
namespace {

Json read_optional(const std::filesystem::path& file) {
    if (!std::filesystem::exists(file)) return Json::object();
    Json json = read_json_file(file);
    JsonView(json, "'" + file.string() + "'").object();
    return json;
}

std::string text_of_token(const JsonView& token) {
    return token.json().is_object() ? token.at("content").string() : token.string();
}

}  // namespace

TokenizerSettings read_settings(const std::filesystem::path& folder) {
    TokenizerSettings out;
    out.folder = folder;
    out.config = read_optional(folder / "tokenizer_config.json");
    out.special_map = read_optional(folder / "special_tokens_map.json");
    out.added = read_optional(folder / "added_tokens.json");
    const std::filesystem::path generation = folder / "generation_config.json";
    if (std::filesystem::exists(generation)) out.generation = read_optional(generation);
    out.model = read_optional(folder / "config.json");
    const std::filesystem::path chat_template = folder / "chat_template.jinja";
    if (std::filesystem::exists(chat_template)) out.chat_template = read_stored_text(chat_template.string());
    return out;
}

std::string TokenizerSettings::tokenizer_class() const {
    const std::string where = "'" + (folder / "tokenizer_config.json").string() + "':";
    std::string name = JsonView(config, where).string("tokenizer_class", "");
    if (name.empty()) {
        static const std::map<std::string, std::string> by_model{{"bert", "BertTokenizer"},
                                                                 {"gpt2", "GPT2Tokenizer"},
                                                                 {"gptj", "GPT2Tokenizer"},
                                                                 {"llama", "LlamaTokenizer"},
                                                                 {"mistral", "LlamaTokenizer"},
                                                                 {"gemma", "GemmaTokenizer"},
                                                                 {"gemma2", "GemmaTokenizer"},
                                                                 {"roberta", "RobertaTokenizer"},
                                                                 {"qwen2", "Qwen2Tokenizer"},
                                                                 {"qwen", "QWenTokenizer"},
                                                                 {"t5", "T5Tokenizer"},
                                                                 {"mt5", "T5Tokenizer"},
                                                                 {"xlm-roberta", "XLMRobertaTokenizer"},
                                                                 {"camembert", "CamembertTokenizer"},
                                                                 {"mbart", "MBartTokenizer"},
                                                                 {"albert", "AlbertTokenizer"}};
        const JsonView file(model, "'" + (folder / "config.json").string() + "':");
        const auto known = by_model.find(file.string("model_type", ""));
        if (known != by_model.end()) name = known->second;
    }
    return name.ends_with("Fast") ? name.substr(0, name.size() - 4) : name;
}

std::optional<std::string> TokenizerSettings::special(const std::string& name) const {
    const std::string key = name + "_token";
    for (const auto& [json, file] :
         {std::pair{&config, "tokenizer_config.json"}, {&special_map, "special_tokens_map.json"}}) {
        const JsonView view(*json, "'" + (folder / file).string() + "':");
        if (const auto token = view.find(key)) return text_of_token(*token);
    }
    return std::nullopt;
}

}  // namespace refold
