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

std::vector<size_t> cuts_of_long_runs(std::string_view text) {
    constexpr size_t kLongest = 8192;
    std::vector<size_t> ends;
    size_t run = 0, better = 0, run_at_better = 0;
    bool space = false, letter = false;
    for (size_t at = 0; at < text.size();) {
        const size_t size = code_point_size(text, at);
        const char32_t c = to_code_points(text.substr(at, size)).front();
        const bool is_space = is_white_space(c);
        const bool is_letter = c >= 0x80 || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (is_space != space) run = better = 0;
        if (run > 0 && is_letter != letter) {
            better = at;
            run_at_better = run;
        }
        space = is_space;
        letter = is_letter;
        if (run == kLongest) {
            ends.push_back(better > 0 ? better : at);
            run -= better > 0 ? run_at_better : run;
            better = 0;
        }
        ++run;
        at += size;
    }
    ends.push_back(text.size());
    return ends;
}

}  // namespace refold
