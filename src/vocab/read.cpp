#include "core/error.h"
#include "vocab/hf_vocab.h"
#include "vocab/pipeline.h"
#include "vocab/vocabulary.h"

namespace refold {
namespace {

constexpr int64_t kLargestVocabulary = int64_t{1} << 28;

std::optional<Vocabulary> read_any(const TokenizerSettings& settings, int64_t vocab_size) {
    const auto has = [&](const char* name) { return std::filesystem::exists(settings.folder / name); };
    if (has("tokenizer.json")) return read_tokenizer_json(settings.folder / "tokenizer.json", vocab_size);
    if (has("tokenizer.model")) return read_sentencepiece(settings.folder / "tokenizer.model", vocab_size);
    if (has("vocab.json") && has("merges.txt")) return read_bpe_files(settings, vocab_size);
    if (has("vocab.txt")) return read_word_list(settings, vocab_size);
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
