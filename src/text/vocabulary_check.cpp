#include "text/vocabulary_check.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "core/error.h"
#include "core/text.h"
#include "vocab/decoder.h"
#include "vocab/gguf_arrays.h"
#include "vocab/hf_vocab.h"
#include "vocab/unicode.h"
#include "vocab/vocabulary.h"

namespace refold {
namespace {

using Tokens = std::vector<std::string>;

// Bounds far above those of real vocabularies. libllama keeps tokens of some kinds in a trie with a node of a
// tree for every byte, which it frees recursively.
constexpr size_t kLongestToken = 4096, kLongestInTrie = 1024, kLongestWordPiece = 256;
constexpr size_t kMostInTrie = size_t{16} << 20;
constexpr size_t kMostSpelled = size_t{256} << 20;
constexpr double kMostSuffixes = 3e8;
constexpr size_t kLongestReplacement = 1024;

class Check {
public:
    Check(const GgufMetadata& metadata, const std::string& label, const Tokens& tokens)
        : metadata_(metadata), label_(label), tokens_(tokens) {}

    void run() {
        const std::string model = metadata_.string("tokenizer.ggml.model", "");
        const bool in_trie = model == "t5" || model == "rwkv";
        lengths(in_trie ? kLongestInTrie : model == "bert" ? kLongestWordPiece : kLongestToken);
        unique();
        if (in_trie) trie();
        if (model == "bert") word_pieces();
        if (model == "gpt2" || model == "hybriddna" || model == "whitespace") byte_level();
        if (model == "t5" && !metadata_.has(kTokenizerJsonKey)) char_map();  // else refold's alone
        if (model == "rwkv") rwkv();
        if (model == "plamo2") suffixes();
    }

private:
    template <typename... Args>
    [[noreturn]] void damaged(fmt::format_string<Args...> format, Args&&... args) const {
        fail(ErrorCode::input, "tokenizer", "'{}': {} - the file is damaged", label_,
             fmt::format(format, std::forward<Args>(args)...));
    }

    void lengths(size_t most) const {
        for (size_t i = 0; i < tokens_.size(); ++i)
            if (tokens_[i].size() > most)
                damaged("token {} has {} bytes, expected at most {}", i, tokens_[i].size(), most);
    }

    // libllama reads tokens up to a zero byte and gives empty ones a name, and aborts when two are equal.
    void unique() const {
        std::unordered_set<std::string> seen;
        for (size_t i = 0; i < tokens_.size(); ++i) {
            std::string token = tokens_[i].c_str();
            if (token.empty()) token = fmt::format("[EMPTY_{}]", i);
            if (const auto [found, added] = seen.insert(std::move(token)); !added)
                fail(ErrorCode::input, "tokenizer",
                     "'{}': token '{}' is there twice in tokenizer.ggml.tokens", label_, *found);
        }
    }

    void trie() const {
        size_t bytes = 0;
        for (const std::string& token : tokens_) bytes += token.size();
        if (bytes > kMostInTrie)
            damaged("the tokens have {}, expected at most {}", format_bytes(bytes),
                    format_bytes(kMostInTrie));
    }

    void word_pieces() const {
        const std::vector<int32_t> types = ints_of(metadata_, "tokenizer.ggml.token_type");
        const auto byte = std::find(types.begin(), types.end(), int32_t{kByteToken});
        if (byte != types.end())
            damaged("token {} is a byte token, which a WordPiece vocabulary cannot have",
                    byte - types.begin());
    }

    // For every character outside the byte alphabet libllama spells the whole token once.
    void byte_level() const {
        static const auto known = [] {
            std::unordered_set<char32_t> all;
            for (unsigned byte = 0; byte < 256; ++byte)
                all.insert(byte_level_character(static_cast<unsigned char>(byte)));
            return all;
        }();
        size_t bytes = 0;
        for (const std::string& token : tokens_) {
            size_t others = 0;
            for (const char32_t c : to_code_points(token)) others += known.contains(c) ? 0 : 1;
            bytes += others * (token.size() + 32);
        }
        if (bytes > kMostSpelled) damaged("too many tokens hold characters that stand for no byte");
    }

    // A trie, whose size comes first, and the texts that replace others, each with a zero byte at its end.
    void char_map() const {
        constexpr const char* kKey = "tokenizer.ggml.precompiled_charsmap";
        if (!metadata_.has(kKey)) return;
        const std::string bytes = bytes_of(metadata_, kKey);
        uint32_t size = 0;
        if (bytes.size() > sizeof size) memcpy(&size, bytes.data(), sizeof size);
        if (size == 0 || size % 4 != 0 || size >= bytes.size() - sizeof size)
            damaged("key '{}' has {} bytes with a trie of {}", kKey, bytes.size(), size);
        const std::string_view texts = std::string_view(bytes).substr(sizeof size + size);
        for (size_t at = 0; at < texts.size();) {
            const size_t end = std::min(texts.find('\0', at), texts.size());
            if (end - at > kLongestReplacement)
                damaged("key '{}' has a replacement of {} bytes, expected at most {}", kKey, end - at,
                        kLongestReplacement);
            at = end + 1;
        }
    }

    // libllama steps on by the longest token that matches. It never ends where a text begins like a token but
    // holds none.
    void rwkv() const {
        std::array<bool, 256> begins{}, is_token{};
        for (const std::string& token : tokens_) {
            const std::string text = unescaped(token);
            if (text.empty()) continue;
            const auto first = static_cast<unsigned char>(text.front());
            begins[first] = true;
            is_token[first] = is_token[first] || text.size() == 1;
        }
        for (size_t byte = 0; byte < begins.size(); ++byte)
            if (begins[byte] && !is_token[byte])
                damaged("no token is the byte 0x{:02X}, with which others begin", byte);
    }

    // Of a token's text in an RWKV vocabulary, read as libllama does.
    static std::string unescaped(const std::string& token) {
        std::string out;
        int digits = 0;
        unsigned code = 0;
        bool escaped = false;
        for (const char c : std::string_view(token.c_str())) {
            if (digits > 0) {
                code = (code << 4) + static_cast<unsigned>(c >= 'a' ? c - 'a' + 10 : c - '0');
                if (--digits == 0) out += static_cast<char>(static_cast<unsigned char>(code));
            } else if (std::exchange(escaped, !escaped && c == '\\')) {
                digits = c == 'x' ? 2 : 0;
                code = 0;
                if (digits == 0) out += c == 't' ? '\t' : c == 'n' ? '\n' : c == 'r' ? '\r' : c;
            } else if (!escaped) {
                out += c;
            }
        }
        return out;
    }

    // libllama makes all suffixes of a token, and of each all prefixes.
    void suffixes() const {
        double work = 0;
        for (const std::string& token : tokens_) {
            const auto size = static_cast<double>(to_code_points(token).size());
            work += size * size * size;
        }
        if (work > kMostSuffixes) damaged("its tokens have too many suffixes");
    }

    const GgufMetadata& metadata_;
    const std::string& label_;
    const Tokens& tokens_;
};

}  // namespace

void check_vocabulary(const GgufMetadata& metadata, const std::string& label) {
    if (metadata.has(kTokenizerReasonKey)) {
        fail(ErrorCode::unsupported, "tokenizer", "'{}' has no tokenizer that can be run: {}", label,
             metadata.string(kTokenizerReasonKey));
    }
    const std::string model = metadata.string("tokenizer.ggml.model", "");
    if (model == "none" || model == "no_vocab" || model == "test")
        fail(ErrorCode::unsupported, "tokenizer", "'{}' has no tokenizer (tokenizer.ggml.model is '{}')",
             label, model);
    const GgufValue* value = metadata.find("tokenizer.ggml.tokens");
    const auto* array =
        value == nullptr ? nullptr : std::get_if<std::shared_ptr<const GgufArray>>(&value->value);
    if (array == nullptr || (*array)->element != GgufType::String || (*array)->count == 0) {
        fail(ErrorCode::unsupported, "tokenizer",
             "'{}' has no tokenizer (in GGUF: tokenizer.ggml.tokens; in a directory: tokenizer.json, "
             "tokenizer.model, *.tiktoken, vocab.json with merges.txt, or vocab.txt)",
             label);
    }
    Check(metadata, label, (*array)->strings).run();
}

}  // namespace refold
