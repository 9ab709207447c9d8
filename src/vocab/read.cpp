#include "core/error.h"
#include "vocab/hf_vocab.h"
#include "vocab/pipeline.h"
#include "vocab/vocabulary.h"

namespace refold {
namespace {

constexpr int64_t kLargestVocabulary = int64_t{1} << 28;

// tiktoken's file of a name that the model chooses.
std::optional<std::filesystem::path> tiktoken_file(const std::filesystem::path& folder) {
    std::vector<std::filesystem::path> found;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
        if (file.path().extension() == ".tiktoken") found.push_back(file.path());
    }
    if (found.size() > 1) {
        fail(ErrorCode::input, "tokenizer", "'{}' has {} files '*.tiktoken', expected one", folder.string(),
             found.size());
    }
    return found.empty() ? std::nullopt : std::optional(found.front());
}

std::optional<Vocabulary> read_any(const TokenizerSettings& settings, int64_t vocab_size) {
    const auto has = [&](const char* name) { return std::filesystem::exists(settings.folder / name); };
    if (has("tokenizer.json")) return read_tokenizer_json(settings.folder / "tokenizer.json", vocab_size);
    for (const char* name :
         {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model"}) {
        if (!has(name)) continue;
        const std::filesystem::path file = settings.folder / name;
        return is_tiktoken(file) ? read_tiktoken(file, settings, vocab_size)
                                 : read_sentencepiece(file, settings, vocab_size);
    }
    if (has("vocab.json") && has("merges.txt")) return read_bpe_files(settings, vocab_size);
    if (has("vocab.txt")) return read_word_list(settings, vocab_size);
    if (const auto file = tiktoken_file(settings.folder)) return read_tiktoken(*file, settings, vocab_size);
    return std::nullopt;
}

}  // namespace

bool read_hf_vocabulary(const std::filesystem::path& folder, int64_t vocab_size, GgufMetadata& metadata) {
    if (vocab_size < 1 || vocab_size > kLargestVocabulary) {
        fail(ErrorCode::input, "tokenizer", "got a vocabulary of {} rows, expected 1 to {}", vocab_size,
             kLargestVocabulary);
    }
    const TokenizerSettings settings = read_settings(folder);
    std::optional<Vocabulary> vocabulary = read_any(settings, vocab_size);
    if (!vocabulary) return false;
    apply_settings(settings, vocab_size, *vocabulary);
    GgufMetadata result = metadata;
    set_metadata(*vocabulary, settings, vocab_size, result);
    const HfPipeline check(result, vocabulary->source);  // throws for steps that cannot be run
    metadata = std::move(result);
    return true;
}

}  // namespace refold
