#include "text/long_runs.h"

#include <set>

#include "vocab/unicode.h"

namespace refold {

bool splits_recursively(const std::string& pre) {
    // libllama has functions of its own for the patterns of these.
    static const std::set<std::string> others{
        "llama3",     "llama-v3",    "llama-bpe",        "falcon3",    "falcon-h1",  "pixtral",
        "lfm2",       "dbrx",        "smaug-bpe",        "gpt-2",      "phi-2",      "mpt",
        "olmo",       "jina-es",     "jina-de",          "jina-v2-es", "jina-v2-de", "jina-v2-code",
        "jina-v1-en", "roberta-bpe", "modern-bert",      "starcoder",  "refact",     "command-r",
        "smollm",     "codeshell",   "exaone",           "minerva-7b", "qwen2",      "stablelm2",
        "hunyuan",    "qwen35",      "deepseek-r1-qwen", "kimi-k2",    "gemma4",     "chatglm-bpe",
        "glm4"};
    return !others.contains(pre);
}

namespace {

enum class Kind { space, digit, punctuation, other };

Kind kind_of(char32_t c) {
    return is_white_space(c)        ? Kind::space
           : is_numeric(c)          ? Kind::digit
           : is_bert_punctuation(c) ? Kind::punctuation
                                    : Kind::other;
}

}  // namespace

std::vector<size_t> cuts_of_long_runs(std::string_view text) {
    constexpr size_t kLongest = 4096, kLongestSpace = 1024, kLongestNumber = 512;
    std::vector<size_t> ends;
    size_t run = 0, alike = 0;  // characters since the last cut or white space; of them, of the same kind
    size_t change = 0, after_change = 0;
    Kind kind = Kind::other;
    for (size_t at = 0; at < text.size();) {
        const size_t size = code_point_size(text, at);
        const Kind next = kind_of(to_code_points(text.substr(at, size)).front());
        if ((next == Kind::space) != (kind == Kind::space)) run = change = 0;
        if (next != kind) {
            if (run > 0) {
                change = at;
                after_change = 0;
            }
            alike = 0;
        }
        kind = next;
        if (run == kLongest || alike == (kind == Kind::space   ? kLongestSpace
                                         : kind == Kind::digit ? kLongestNumber
                                                               : kLongest)) {
            const bool later = change > 0 && run == kLongest && alike < kLongest;
            ends.push_back(later ? change : at);
            run = later ? after_change : 0;
            alike = later ? alike : 0;
            change = 0;
        }
        ++run;
        ++alike;
        ++after_change;
        at += size;
    }
    ends.push_back(text.size());
    return ends;
}

}  // namespace refold
