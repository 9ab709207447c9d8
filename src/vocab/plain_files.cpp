// Reads vocabularies without a tokenizer.json: vocab.json with merges.txt, and vocab.txt. The defaults of
// transformers' tokenizer class fill in for missing settings.
#include <sstream>

#include "core/error.h"
#include "core/stored_text.h"
#include "core/text.h"
#include "vocab/pre_tokenizers.h"
#include "vocab/vocabulary.h"

namespace refold {
namespace {

// Lines without their ends. Only a line feed ends a line.
std::vector<std::string> read_lines(const std::filesystem::path& file) {
    std::istringstream in(read_stored_text(file.string()));
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) {
        if (line.ends_with('\r')) line.pop_back();
        lines.push_back(std::move(line));
    }
    return lines;
}

std::vector<std::string> read_merges(const std::filesystem::path& file) {
    std::vector<std::string> merges;
    size_t number = 0;
    for (std::string& line : read_lines(file)) {
        ++number;
        if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
        const size_t space = line.find(' ');
        if (space == 0 || space == std::string::npos || space + 1 == line.size() ||
            line.find(' ', space + 1) != std::string::npos) {
            fail(ErrorCode::input, "tokenizer",
                 "'{}' line {} is '{}', expected two tokens with a space between", file.string(), number,
                 line);
        }
        merges.push_back(std::move(line));
    }
    return merges;
}

SpecialToken required(const Vocabulary& vocabulary, const TokenizerSettings& settings,
                      const std::string& name, const std::string& fallback) {
    const std::string token = settings.special(name).value_or(fallback);
    const auto id = vocabulary.find(token);
    if (!id) {
        fail(ErrorCode::input, "tokenizer", "'{}' has no {}_token '{}' - is a file of the tokenizer missing?",
             vocabulary.source, name, token);
    }
    return {*id, token};
}

}  // namespace

Vocabulary read_bpe_files(const TokenizerSettings& settings, int64_t vocab_size) {
    Vocabulary out;
    const std::filesystem::path file = settings.folder / "vocab.json";
    out.source = file.string();
    out.model = "gpt2";
    const Json vocab = read_json_file(file);
    const JsonView view(vocab, "'" + out.source + "':");
    for (const auto& [token, id] : view.object().json().items()) {
        out.set(JsonView(id, "'" + out.source + "': " + token).integer(0, INT64_MAX), token, vocab_size);
    }
    out.merges = read_merges(settings.folder / "merges.txt");

    const std::string kind = settings.tokenizer_class();
    const bool roberta =
        kind == "RobertaTokenizer" || kind == "BartTokenizer" || kind == "LongformerTokenizer";
    const bool gpt2 = roberta || kind == "GPT2Tokenizer" || kind == "CodeGenTokenizer";
    if (!gpt2 && kind != "Qwen2Tokenizer") {
        fail(ErrorCode::unsupported, "tokenizer",
             "'{}': how tokenizer_class '{}' splits words is not known - add the tokenizer.json of the model",
             out.source, kind);
    }
    const NamedPreTokenizer named = pre_tokenizer_named(gpt2 ? "gpt-2" : "qwen2");
    const Json byte_level{
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
    out.skeleton =
        byte_level_skeleton(gpt2 ? byte_level : named.pre_tokenizer, named.normalizer, named.ignore_merges);
    if (roberta) {
        out.skeleton["post_processor"] =
            bert_processor("RobertaProcessing", required(out, settings, "cls", "<s>"),
                           required(out, settings, "sep", "</s>"));
    }
    return out;
}

Vocabulary read_word_list(const TokenizerSettings& settings, int64_t vocab_size) {
    Vocabulary out;
    const std::filesystem::path file = settings.folder / "vocab.txt";
    out.source = file.string();
    out.model = "bert";
    int64_t id = 0;
    for (const std::string& line : read_lines(file)) out.set(id++, line, vocab_size);

    const std::string kind = settings.tokenizer_class();
    if (kind != "BertTokenizer" && kind != "DistilBertTokenizer" && kind != "ElectraTokenizer") {
        fail(ErrorCode::unsupported, "tokenizer",
             "'{}': how tokenizer_class '{}' splits words is not known - add the tokenizer.json of the model",
             out.source, kind);
    }
    const JsonView config(settings.config, "'" + (settings.folder / "tokenizer_config.json").string() + "':");
    const bool lower = config.boolean("do_lower_case", true);
    const auto accents = config.find("strip_accents");
    const SpecialToken unknown = required(out, settings, "unk", "[UNK]");
    out.skeleton = word_piece_skeleton(lower, accents ? Json(accents->boolean()) : Json(),
                                       config.boolean("tokenize_chinese_chars", true), unknown.content);
    const SpecialToken cls = required(out, settings, "cls", "[CLS]"),
                       sep = required(out, settings, "sep", "[SEP]");
    out.skeleton["post_processor"] = bert_processor("BertProcessing", cls, sep);
    return out;
}

}  // namespace refold
