#include "vocab/pre_tokenizers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"
#include "vocab/splitter.h"

namespace refold {
namespace {

constexpr const char* kGpt2 = kByteLevelWords;
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepSeek3 =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
    " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kSeedCoder =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| "
    "?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
constexpr const char* kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kMiniCpm5 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Not patterns: pre-tokenizers of other types.
constexpr const char* kDigits = "digits";                // digit by digit
constexpr const char* kDigitRuns = "digit runs";         // whole numbers
constexpr const char* kPunctuationRuns = "punctuation";  // runs of it
constexpr const char* kBytes = "bytes";                  // a byte-level step before the last one
// These patterns match every character, so keeping the matches is the same as splitting at them.
bool is_complete(const std::string& pattern) {
    return pattern == kGpt2 || pattern == kLlama3 || pattern == kQwen2;
}

struct LlamaPreTokenizer {
    const char* name;
    std::vector<std::string> steps;
    bool ignore_merges = false;
    bool exact = true;  // libllama splits so
};

// Of entries that split alike, the first gives the name that is written.
const std::vector<LlamaPreTokenizer>& llama_pre_tokenizers() {
    static const std::vector<LlamaPreTokenizer> table{
        {"gpt-2", {kGpt2}},
        {"roberta-bpe", {kGpt2}},
        {"olmo", {kGpt2}},
        {"mpt", {kGpt2}},
        {"phi-2", {kGpt2}},
        {"llama-bpe", {kLlama3}, true},
        {"llama3", {kLlama3}, true},
        {"smaug-bpe", {kLlama3}},
        {"dbrx", {kLlama3}},
        {"qwen2", {kQwen2}},
        {"deepseek-r1-qwen", {kQwen2}},
        {"stablelm2", {kQwen2}},
        {"hunyuan", {kQwen2}},
        {"smollm", {kDigits, kGpt2}},
        {"starcoder", {kDigits, kGpt2}},
        {"refact", {kDigits, kGpt2}},
        {"command-r", {kDigits, kGpt2}},
        {"codeshell", {kDigits, kGpt2}},
        {"deepseek-coder", {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-\uD7FF]+", kDigits}},
        {"deepseek-v3", {R"(\p{N}{1,3})", "[一-龥\u3040-ゟ゠-ヿ]+", kDeepSeek3}},
        {"hunyuan-dense", {R"(\p{N}{1,3})", "[一-龥\u3040-ゟ゠-ヿ]+", kDeepSeek3}},
        {"gpt-4o", {kO200k}, false, false},
        {"llama4", {kO200k}, false, false},
        {"tekken", {kTekken}, true, false},
        {"qwen35", {kQwen35}, false, false},
        {"seed-coder", {kSeedCoder}, false, false},
        {"bailingmoe", {kBailing}, false, false},
        {"minicpm5", {R"(\p{N}{1,3})", kMiniCpm5}, true, false},
        {"falcon", {kPunctuationRuns, kGpt2, kBytes, kDigitRuns, "[0-9][0-9][0-9]"}, false, false},
    };
    return table;
}

struct Steps {
    std::vector<std::string> patterns;
    bool byte_level = false;  // the last step
    bool add_prefix_space = false;
    bool supported = true;
};

void add_split(const JsonView& json, Steps& steps) {
    const auto regex = json.at("pattern").find("Regex");
    const std::string pattern = regex ? regex->string() : "";
    const std::string behavior = json.at("behavior").string();
    const bool invert = json.boolean("invert", false);
    const bool isolated = behavior == "Isolated" && !invert;
    const bool matches = behavior == "Removed" && invert && is_complete(pattern);
    steps.supported = steps.supported && regex && (isolated || matches);
    steps.patterns.push_back(pattern);
}

void add_steps(const JsonView& json, Steps& steps, int depth = 0) {
    const std::string type = json.at("type").string();
    if (std::exchange(steps.byte_level, false)) steps.patterns.emplace_back(kBytes);
    if (type == "Sequence" && depth < 8) {
        const JsonView parts = json.at("pretokenizers");
        for (size_t i = 0; i < parts.array().size(); ++i) add_steps(parts.at(i), steps, depth + 1);
    } else if (type == "Split") {
        add_split(json, steps);
    } else if (type == "Digits") {
        steps.patterns.emplace_back(json.boolean("individual_digits", false) ? kDigits : kDigitRuns);
    } else if (type == "Punctuation") {
        steps.supported = steps.supported && json.string("behavior", "Isolated") == "Contiguous";
        steps.patterns.emplace_back(kPunctuationRuns);
    } else if (type == "ByteLevel") {
        steps.byte_level = true;
        steps.add_prefix_space = json.boolean("add_prefix_space", true);
        // After an earlier split, each of its parts would get a prefix space, not only the whole text.
        steps.supported = steps.supported && !(steps.add_prefix_space && !steps.patterns.empty());
        if (json.boolean("use_regex", true)) steps.patterns.emplace_back(kGpt2);
    } else {
        steps.supported = false;
    }
}

Json step_json(const std::string& step) {
    if (step == kDigits || step == kDigitRuns)
        return {{"type", "Digits"}, {"individual_digits", step == kDigits}};
    if (step == kPunctuationRuns) return {{"type", "Punctuation"}, {"behavior", "Contiguous"}};
    if (step == kBytes)
        return {
            {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
    return {{"type", "Split"}, {"pattern", {{"Regex", step}}}, {"behavior", "Isolated"}, {"invert", false}};
}

}  // namespace

bool is_byte_level(const Json& json) {
    if (!json.is_object()) return false;
    if (json.value("type", Json()) == "ByteLevel") return true;
    const auto parts = json.find("pretokenizers");
    return parts != json.end() && parts->is_array() &&
           std::any_of(parts->begin(), parts->end(), is_byte_level);
}

PreTokenizer recognize_pre_tokenizer(const JsonView& json, bool ignore_merges) {
    Steps steps;
    add_steps(json, steps);
    PreTokenizer own{kOwnPreTokenizer, false, steps.add_prefix_space};
    if (!steps.supported) return own;
    const LlamaPreTokenizer* best = nullptr;
    for (const LlamaPreTokenizer& entry : llama_pre_tokenizers()) {
        if (entry.steps != steps.patterns) continue;
        const bool alike = entry.ignore_merges == ignore_merges;
        if (best == nullptr || (alike && best->ignore_merges != ignore_merges)) best = &entry;
    }
    // libllama's byte-level step is the last one.
    if (best == nullptr) return own;
    return {best->name, best->exact && steps.byte_level && best->ignore_merges == ignore_merges,
            steps.add_prefix_space};
}

NamedPreTokenizer pre_tokenizer_named(const std::string& name) {
    const auto& table = llama_pre_tokenizers();
    const auto match = std::find_if(table.begin(), table.end(),
                                    [&](const LlamaPreTokenizer& entry) { return entry.name == name; });
    if (match == table.end()) {
        fail(ErrorCode::unsupported, "tokenizer",
             "the pre-tokenizer '{}' of this GGUF vocabulary cannot be written as tokenizer.json", name);
    }
    NamedPreTokenizer out;
    out.ignore_merges = match->ignore_merges;
    out.pre_tokenizer = {{"type", "Sequence"}, {"pretokenizers", Json::array()}};
    Json& parts = out.pre_tokenizer["pretokenizers"];
    bool bytes = false;
    for (const auto& step : match->steps) {
        parts.push_back(step_json(step));
        bytes = bytes || step == kBytes;
    }
    if (!bytes) parts.push_back(step_json(kBytes));
    const bool composes = name == "qwen2" || name == "qwen35" || name == "deepseek-r1-qwen" ||
                          name == "olmo" || name == "command-r";
    if (composes) out.normalizer = {{"type", "NFC"}};
    return out;
}

}  // namespace refold
