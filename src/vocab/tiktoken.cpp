// Reads tiktoken's vocabularies: one line for each token, its bytes in base64 and its rank, which is its id.
// The lower rank is merged first, so the merges follow from the ranks.
#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "core/files.h"
#include "vocab/base64.h"
#include "vocab/decoder.h"
#include "vocab/merge_bpe.h"
#include "vocab/pre_tokenizers.h"
#include "vocab/unicode.h"
#include "vocab/vocabulary.h"

namespace refold {
namespace {

std::string_view next_line(std::string_view& text) {
    const size_t size = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, size);
    text.remove_prefix(std::min(size + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
}

// False when the line is not of the format.
bool read_line(std::string_view line, std::string& token, int32_t& rank) {
    const size_t space = line.find(' ');
    if (space == 0 || space == std::string_view::npos) return false;
    auto bytes = from_base64(line.substr(0, space));
    const char* const end = line.data() + line.size();
    const auto [last, error] = std::from_chars(line.data() + space + 1, end, rank);
    if (!bytes || bytes->empty() || error != std::errc() || last != end || rank < 0) return false;
    token = std::move(*bytes);
    return true;
}

std::string in_alphabet(std::string_view bytes) {
    std::string out;
    for (const char c : bytes) append_utf8(out, byte_level_character(static_cast<unsigned char>(c)));
    return out;
}

// Where the parts of `token` start when only ranks below its own are merged; its size is the last element.
std::vector<size_t> parts_of(std::string_view token, int32_t rank, const TokenIds& ranks) {
    std::vector<size_t> starts(token.size() + 1);
    for (size_t i = 0; i < starts.size(); ++i) starts[i] = i;
    while (starts.size() > 2) {
        int32_t best = rank;
        size_t at = 0;
        for (size_t i = 0; i + 2 < starts.size(); ++i) {
            const auto found = ranks.find(token.substr(starts[i], starts[i + 2] - starts[i]));
            if (found == ranks.end() || found->second >= best) continue;
            best = found->second;
            at = i + 1;
        }
        if (at == 0) break;
        starts.erase(starts.begin() + static_cast<ptrdiff_t>(at));
    }
    return starts;
}

// What a model adds to its file of ranks, which names neither its pattern nor its special tokens.
struct TiktokenModel {
    const char* pre_tokenizer = "";  // for pre_tokenizer_named()
    std::vector<std::string> special = {};
    const char *begin = nullptr, *end = nullptr;  // of these, BOS (which is put before every text) and EOS
};

TiktokenModel llama3() {
    TiktokenModel out{
        "llama-bpe", {"<|begin_of_text|>", "<|end_of_text|>"}, "<|begin_of_text|>", "<|end_of_text|>"};
    const auto reserve = [&](int first, int last) {
        for (int i = first; i <= last; ++i)
            out.special.push_back("<|reserved_special_token_" + std::to_string(i) + "|>");
    };
    reserve(0, 3);
    for (const char* name : {"<|start_header_id|>", "<|end_header_id|>"}) out.special.emplace_back(name);
    reserve(4, 4);
    out.special.emplace_back("<|eot_id|>");
    reserve(5, 250);
    return out;
}

TiktokenModel qwen() {
    TiktokenModel out{"qwen2", {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}};
    for (int i = 0; i < 205; ++i) out.special.push_back("<|extra_" + std::to_string(i) + "|>");
    return out;
}

TiktokenModel tiktoken_model(const std::string& file, const TokenizerSettings& settings) {
    const std::string name = std::filesystem::path(file).filename().string(),
                      kind = settings.tokenizer_class();
    if (name == "cl100k_base.tiktoken") return {.pre_tokenizer = "dbrx"};
    if (name == "o200k_base.tiktoken") return {.pre_tokenizer = "gpt-4o"};
    if (kind == "QWenTokenizer" || (kind.empty() && name == "qwen.tiktoken")) return qwen();
    if (kind.empty() || kind == "PreTrainedTokenizer" || kind == "LlamaTokenizer") return llama3();
    fail(ErrorCode::unsupported, "tokenizer",
         "'{}': how tokenizer_class '{}' splits words is not known - add the tokenizer.json of the model",
         file, kind);
}

void add_special(const TiktokenModel& kind, const TokenizerSettings& settings, int64_t vocab_size,
                 Vocabulary& out) {
    const bool described = settings.config.contains("added_tokens_decoder") || !settings.added.empty();
    auto id = static_cast<int64_t>(out.tokens.size());
    for (const std::string& content : kind.special) {
        if (described || id >= vocab_size) break;  // the embedding may have fewer rows
        AddedToken token{static_cast<int32_t>(id), content};
        token.special = true;
        token.normalized = false;
        out.skeleton["added_tokens"].push_back(to_json(token));
        out.set(id++, content, vocab_size);
    }
    for (const auto& [name, content] : {std::pair{"bos", kind.begin}, {"eos", kind.end}}) {
        if (content != nullptr && out.find(content)) out.specials.emplace(name, content);
    }
    const std::string begin = settings.special("bos").value_or(kind.begin == nullptr ? "" : kind.begin);
    const auto begin_id = out.find(begin);
    if (kind.begin != nullptr && begin_id)
        out.skeleton["post_processor"] = template_processor({{*begin_id, begin}}, {});
}

}  // namespace

bool is_tiktoken(const std::filesystem::path& file) {
    const MappedFile map(file.string());
    std::string_view text(reinterpret_cast<const char*>(map.bytes().data()),
                          std::min<size_t>(map.bytes().size(), 4096));
    std::string token;
    int32_t rank = 0;
    return read_line(next_line(text), token, rank);
}

Vocabulary read_tiktoken(const std::filesystem::path& file, const TokenizerSettings& settings,
                         int64_t vocab_size) {
    Vocabulary out;
    out.source = file.string();
    out.model = "gpt2";
    const MappedFile map(out.source);
    std::string_view text(reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size());
    TokenIds ranks;
    std::vector<std::string> tokens;
    for (size_t number = 1; !text.empty(); ++number) {
        const std::string_view line = next_line(text);
        std::string token;
        int32_t rank = 0;
        if (line.empty()) continue;
        if (!read_line(line, token, rank)) {
            fail(ErrorCode::input, "tokenizer",
                 "'{}' line {} is '{}', expected a token in base64 and its rank", out.source, number, line);
        }
        out.set(rank, in_alphabet(token), vocab_size);
        if (!ranks.emplace(token, rank).second)
            fail(ErrorCode::input, "tokenizer", "'{}' line {}: the token is there twice", out.source, number);
        tokens.resize(std::max(tokens.size(), static_cast<size_t>(rank) + 1));
        tokens[static_cast<size_t>(rank)] = std::move(token);
    }
    const TiktokenModel kind = tiktoken_model(out.source, settings);
    const NamedPreTokenizer named = pre_tokenizer_named(kind.pre_tokenizer);
    // tiktoken takes a word that is a token as it is, which makes a difference when merges do not lead to it.
    bool ignore_merges = named.ignore_merges;
    for (const std::string& token : tokens) {
        if (token.size() < 2) continue;
        const auto starts = parts_of(token, ranks.at(token), ranks);
        ignore_merges = ignore_merges || starts.size() != 3;
        if (starts.size() != 3) continue;
        const std::string_view whole = token;
        out.merges.push_back(in_alphabet(whole.substr(0, starts[1])) + " " +
                             in_alphabet(whole.substr(starts[1])));
    }
    out.skeleton = byte_level_skeleton(named.pre_tokenizer, named.normalizer, ignore_merges);
    add_special(kind, settings, vocab_size, out);
    return out;
}

}  // namespace refold
