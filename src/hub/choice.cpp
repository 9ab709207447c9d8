#include "hub/choice.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/json_text.h"
#include "core/text.h"
#include "hub/names.h"

namespace refold::hub {
namespace {

using Names = std::span<const std::string>;

constexpr const char* kConfig = "config.json";

bool has(Names names, std::string_view name) { return std::ranges::find(names, name) != names.end(); }

std::string lower(std::string text) {
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
}

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Configuration and tokenizer.
bool is_side_file(const std::string& path) {
    static const std::set<std::string> kNames = {
        kConfig,
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "spiece.model",
        "sentencepiece.bpe.model",
        "tiktoken.model",
        "chat_template.jinja",
        "chat_template.json",
        "modules.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
    };
    const bool is_template = path.starts_with("additional_chat_templates/") && path.ends_with(".jinja");
    const bool is_tiktoken = path.find('/') == path.npos && path.ends_with(".tiktoken");
    // Modules of sentence-transformers: "1_Pooling/config.json", "2_Dense/model.safetensors".
    const size_t digits = path.find_first_not_of("0123456789"), slash = path.find('/');
    const std::string file = slash == path.npos ? "" : path.substr(slash + 1);
    const bool is_module = digits > 0 && digits != path.npos && path[digits] == '_' &&
                           (file == kConfig || file == "model.safetensors" || file == "pytorch_model.bin");
    return kNames.contains(path) || is_template || is_tiktoken || is_module;
}

// ---- GGUF ----

// A model in one GGUF file or in several shards ("name-00001-of-00003.gguf"), in order.
struct GgufModel {
    std::vector<std::string> shards;
    size_t total = 1;
};

// Turns "a/name-00002-of-00003.gguf" into "a/name.gguf" and 3.
std::pair<std::string, size_t> without_shard(const std::string& path) {
    constexpr size_t kTail = 20;  // "-00002-of-00003.gguf"
    if (path.size() <= kTail) return {path, 1};
    std::string tail = path.substr(path.size() - kTail);
    size_t total = 0;
    std::from_chars(tail.data() + 10, tail.data() + 15, total);
    std::ranges::replace_if(
        tail, [](unsigned char c) { return std::isdigit(c) != 0; }, '0');
    if (tail != "-00000-of-00000.gguf" || total == 0) return {path, 1};
    return {path.substr(0, path.size() - kTail) + ".gguf", total};
}

std::map<std::string, GgufModel> gguf_models(Names names) {
    std::map<std::string, GgufModel> models;
    for (const auto& name : names) {
        if (!lower(name).ends_with(".gguf")) continue;
        const auto [base, total] = without_shard(name);
        GgufModel& model = models[base];
        model.shards.push_back(name);
        model.total = total;
    }
    std::erase_if(models, [](const auto& entry) { return entry.second.shards.size() != entry.second.total; });
    for (auto& [base, model] : models) std::ranges::sort(model.shards);
    return models;
}

// GGUF files that accompany models but are not models: image projectors, importance matrices.
bool is_companion(const std::string& path) {
    const std::string name = lower(file_name(path));
    return name.starts_with("mmproj") || name.find("imatrix") != name.npos;
}

// Whether `path` contains `quant` as a whole word: neither Q4_K_M nor IQ4_K contains Q4_K.
bool has_word(const std::string& path, const std::string& quant) {
    const std::string text = lower(path), word = lower(quant);
    const auto is_inner = [&](size_t at) {
        return at < text.size() &&
               (std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == '_');
    };
    for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
        const bool starts = at == 0 || !is_inner(at - 1) || text[at - 1] == '_';
        if (starts && !is_inner(at + word.size())) return true;
    }
    return false;
}

bool matches(const std::string& base, const GgufModel& model, const std::string& wanted) {
    if (wanted.empty()) return !is_companion(base);
    if (lower(wanted).ends_with(".gguf")) {
        const auto is_it = [&](const std::string& part) {
            return part == wanted || file_name(part) == wanted;
        };
        return is_it(base) || std::ranges::any_of(model.shards, is_it);
    }
    return !is_companion(base) && has_word(base, wanted);
}

Choice choose_gguf(const std::map<std::string, GgufModel>& models, const std::string& wanted) {
    std::vector<std::string> found, all;
    for (const auto& [base, model] : models) {
        all.push_back(base);
        if (matches(base, model, wanted)) found.push_back(base);
    }
    if (found.size() > 1) {
        fail(ErrorCode::usage, "hub",
             "{} GGUF files match{} - add one of them, or its type, after a colon as in :Q4_K_M:\n  {}",
             found.size(), wanted.empty() ? "" : " '" + wanted + "'", join(found, "\n  "));
    }
    if (found.empty()) {
        return {.files = {},
                .gguf = {},
                .problem = all.empty() ? "it has no GGUF file"
                                       : fmt::format("no GGUF file matches '{}'; it has\n  {}", wanted,
                                                     join(all, "\n  "))};
    }
    const auto& shards = models.at(found.front()).shards;
    return {.files = shards, .gguf = shards.front(), .problem = {}};
}

// ---- folders of weights ----

// A name without folders that has the ending.
bool on_top(const std::string& name, const char* ending) {
    return name.ends_with(ending) && name.find('/') == name.npos;
}

struct Weights {
    const char* single;
    const char* ending;
    std::string index() const { return std::string(single) + ".index.json"; }
    bool occur(Names names) const {
        return std::ranges::any_of(
            names, [&](const std::string& name) { return name.ends_with(ending) || name == index(); });
    }
};
constexpr Weights kSafetensors{"model.safetensors", ".safetensors"};
constexpr Weights kTorch{"pytorch_model.bin", "pytorch_model.bin"};

std::vector<std::string> indexed_files(const std::string& index, const std::string& text) {
    const auto json = try_parse_json(text);
    const auto map = json.is_object() ? json.find("weight_map") : json.end();
    std::set<std::string> files;
    if (json.is_object() && map != json.end() && map->is_object()) {
        for (const auto& file : *map) {
            const std::string path = file.is_string() ? file.get<std::string>() : "";
            if (!is_safe_path(path)) {
                fail(ErrorCode::input, "hub", "{} names '{}', which is not a path inside the repository",
                     index, quotable(file.is_string() ? path : "something that is no text"));
            }
            files.insert(path);
        }
    }
    if (files.empty()) fail(ErrorCode::input, "hub", "{} is no index: it has no 'weight_map'", index);
    return {files.begin(), files.end()};
}

Choice choose_folder(Names names, const Weights& kind,
                     const std::function<std::string(const std::string&)>& read) {
    Choice choice;
    std::ranges::copy_if(names, std::back_inserter(choice.files), is_side_file);
    std::vector<std::string> weights;
    const std::string index = kind.index();
    if (has(names, index)) {
        weights = indexed_files(index, read(index));
        choice.files.push_back(index);
    } else if (has(names, kind.single)) {
        weights = {kind.single};
    } else {
        std::ranges::copy_if(names, std::back_inserter(weights),
                             [&](const std::string& name) { return on_top(name, kind.ending); });
    }
    for (const auto& name : weights) {
        // A shard without an index: the index has not been downloaded yet.
        if (!has(names, index) && name.find("-of-") != name.npos) {
            return {.files = {}, .gguf = {}, .problem = fmt::format("'{}' is missing", index)};
        }
        if (!has(names, name))
            return {.files = {}, .gguf = {}, .problem = fmt::format("'{}' is missing", name)};
    }
    if (weights.empty())
        return {
            .files = {}, .gguf = {}, .problem = fmt::format("it has no {} in its top folder", kind.single)};
    if (!has(names, kConfig)) {
        return {.files = {}, .gguf = {}, .problem = fmt::format("'{}' is missing", kConfig)};
    }
    choice.files.insert(choice.files.end(), weights.begin(), weights.end());
    return choice;
}

}  // namespace

Choice choose_files(std::span<const std::string> names, const std::string& wanted,
                    const std::function<std::string(const std::string& path)>& read) {
    const auto models = gguf_models(names);
    const bool has_safetensors = kSafetensors.occur(names);
    if (!wanted.empty() || (!has_safetensors && !models.empty())) return choose_gguf(models, wanted);
    if (has_safetensors) return choose_folder(names, kSafetensors, read);
    if (kTorch.occur(names)) return choose_folder(names, kTorch, read);
    return {
        .files = {}, .gguf = {}, .problem = "it has neither safetensors, pytorch_model.bin nor GGUF files"};
}

}  // namespace refold::hub
