// Tokens that texts do not need leave the embedding, the output and the tokenizer.
// Abdaoui et al., "Load What You Need: Smaller Versions of Multilingual BERT", 2020; Ushio et al., "An
// Efficient Multilingual Language Model Compression through Vocabulary Trimming", 2023.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "compress/method/method.h"
#include "compress/rewrite/cut.h"
#include "core/error.h"
#include "core/text.h"
#include "vocab/gguf_arrays.h"
#include "vocab/trim.h"

namespace refold::trim_vocab_method {
namespace {

constexpr Slot kByToken[] = {Slot::token_embd, Slot::output, Slot::output_bias, Slot::layer_input_embd};

std::vector<bool> wanted_tokens(const Step& step, size_t size) {
    std::vector<bool> wanted(size);
    const auto first = static_cast<size_t>(step.options.integer("first"));
    std::fill_n(wanted.begin(), std::min(first, size), true);
    if (!step.options.boolean("text") || step.calibration == nullptr) return wanted;
    const auto& occurrences = step.calibration->occurrences;
    for (size_t id = 0; id < std::min(size, occurrences.size()); ++id) {
        if (occurrences[id] >= step.options.integer("least")) wanted[id] = true;
    }
    return wanted;
}

// Tensors with a row for each token.
std::set<std::string> tensors_by_token(const Model& model) {
    std::set<std::string> names;
    for (const Slot slot : kByToken) {
        const auto found = model.topology.globals.find(slot);
        if (found == model.topology.globals.end()) continue;
        const auto* dense = std::get_if<Dense>(&found->second);
        if (dense == nullptr)
            fail(ErrorCode::unsupported, "trim_vocab", "{} consists of factors", slot_name(slot));
        names.insert(dense->tensor);
    }
    return names;
}

Model apply(const Model& model, Step& step) {
    const size_t size = strings_of(model.metadata, "tokenizer.ggml.tokens").size();
    if (static_cast<int64_t>(size) != model.config.n_vocab)
        fail(ErrorCode::unsupported, "trim_vocab",
             "the tokenizer has {} tokens, the embedding {} rows: both are trimmed together", size,
             model.config.n_vocab);
    const std::vector<int32_t> kept = needed_tokens(model.metadata, wanted_tokens(step, size));
    const auto count = static_cast<int64_t>(kept.size());
    const bool counts_later = step.dry_run() && step.options.boolean("text");
    step.report.lines.push_back(
        fmt::format("{}{} of {} tokens stay", counts_later ? "at least " : "", count, size));
    if (counts_later)
        step.report.lines.emplace_back("and those of the calibration text, which a dry run does not read");
    step.report.details = nlohmann::json{{"tokens_before", size}, {"tokens", count}}.dump();
    if (kept.size() == size) return model;
    Model out = model;
    out.metadata = keep_tokens(model.metadata, kept);
    out.config.n_vocab = count;
    const Cut rows{.columns = false, .width = 1, .kept = {kept.begin(), kept.end()}};
    for (const std::string& name : tensors_by_token(model)) {
        const Tensor& tensor = model.tensor(name);
        // A bias is one row, whose columns are the tokens.
        Cut cut = rows;
        cut.columns = tensor.shape.size() == 1;
        out.tensors[name] = keep_parts(model, tensor, cut, tensor.type);
    }
    return out;
}

constexpr const char* kDocumentation = R"(
Tokens that the texts do not need leave the embedding, the output and the tokenizer. Small models have large vocabularies:
the embedding of Gemma 3 270M has 262,144 rows of 640.

Those stay that occur at least `least` times in the calibration texts (`--calib`; whole texts count, whatever
`--calib-tokens` is), and the `first` ids, which are the most frequent tokens of most tokenizers. With them stay all
special, user-defined and byte tokens, all characters that other text needs, and every token that merging passes through
on the way to one that stays. So all text still encodes and decodes to itself, and a text whose tokens all stay has the
same tokens as before, under new ids. Text of other kinds has more tokens.

The rows that stay are the same bit for bit, quantized ones too, so the logits of tokens that stay are the same. Their
probabilities grow by what the others had: the perplexity per token of a text whose tokens all stay can only fall.
Perplexities of texts that encode to other tokens are of different tokens: compare those per byte
(`refold compare --protocol lm-eval`), also for the KL divergence, which is not defined between two vocabularies.

It must be the last step, because calibrated steps run the original on the same token ids. Training with the original as
teacher must come first too. Byte-level BPE and SentencePiece's BPE are known, WordPiece is not. `refold export --to hf`
writes the trimmed tokenizer. The key `refold.vocabulary.kept` lists the original ids.
)";

}  // namespace

extern const Method method;
const Method method = {
    .name = "trim_vocab",
    .summary = "leave out tokens that the given texts do not need",
    .paper = "Load What You Need: Smaller Versions of Multilingual BERT, section 3",
    .documentation = kDocumentation + 1,
    .options =
        {
            {.name = "text",
             .kind = OptionSpec::Kind::boolean,
             .fallback = "true",
             .help = "tokens of the calibration texts stay"},
            {.name = "least",
             .kind = OptionSpec::Kind::integer,
             .fallback = "1",
             .help = "occurrences in the texts that a token needs to stay",
             .minimum = 1},
            {.name = "first",
             .kind = OptionSpec::Kind::integer,
             .fallback = "0",
             .help = "tokens with an id below this stay too",
             .minimum = 0},
        },
    .apply = apply,
    .calibrated = [](const Options& options) { return options.boolean("text"); },
    .last = true,
};

}  // namespace refold::trim_vocab_method
