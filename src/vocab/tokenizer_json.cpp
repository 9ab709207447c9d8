// Reads tokenizer.json, the file of Hugging Face's tokenizers library.
#include <cmath>

#include "core/error.h"
#include "vocab/pre_tokenizers.h"
#include "vocab/vocabulary.h"

namespace refold {
namespace {

// Old files do not name their model type.
std::string model_type(const JsonView& model) {
    if (const auto type = model.find("type")) return type->string();
    if (model.find("merges")) return "BPE";
    if (model.json().contains("unk_id")) return "Unigram";
    return model.find("max_input_chars_per_word") ? "WordPiece" : "of no known kind";
}

void read_tokens(const JsonView& model, int64_t vocab_size, Vocabulary& out) {
    const JsonView vocab = model.at("vocab");
    for (const auto& [token, id] : vocab.object().json().items()) {
        if (!id.is_number_integer())
            JsonView(id, fmt::format("{}.{}", vocab.where(), token)).expected("an id");
        out.set(id.is_number_unsigned() && id.get<uint64_t>() > INT32_MAX ? INT64_MAX : id.get<int64_t>(),
                token, vocab_size);
    }
}

void read_added_tokens(const JsonView& root, int64_t vocab_size, Vocabulary& out) {
    Json& added = out.skeleton["added_tokens"] = Json::array();
    const auto list = root.find("added_tokens");
    for (size_t i = 0; list && i < list->array().size(); ++i) {
        const JsonView item = list->at(i);
        const int64_t id = item.at("id").integer(0, INT32_MAX);
        const AddedToken token = read_added_token(item, static_cast<int32_t>(id));
        if (token.content.empty()) item.at("content").expected("a text that is not empty");
        out.add(token, vocab_size);
        added.push_back(to_json(token));
    }
}

std::string merge_part(const JsonView& merge, size_t index) {
    if (!merge.json().is_array() || merge.size() != 2) merge.expected("'left right' or a pair of tokens");
    return merge.at(index).string();
}

void read_merges(const JsonView& model, Vocabulary& out) {
    const JsonView merges = model.at("merges");
    out.merges.reserve(merges.array().size());
    for (size_t i = 0; i < merges.size(); ++i) {
        const Json& merge = merges.json()[i];
        if (merge.is_string()) {
            out.merges.push_back(merge.get<std::string>());
            continue;
        }
        const JsonView view = merges.at(i);
        const std::string left = merge_part(view, 0), right = merge_part(view, 1);
        // GGUF cannot hold merges with spaces, and no text that reaches the merges contains a space.
        if (left.find(' ') == std::string::npos && right.find(' ') == std::string::npos) {
            out.merges.push_back(left + " " + right);
        }
    }
}

void read_bpe(const JsonView& root, const JsonView& model, Vocabulary& out) {
    for (const char* field : {"continuing_subword_prefix", "end_of_word_suffix"}) {
        if (!model.string(field, "").empty()) {
            fail(ErrorCode::unsupported, "tokenizer", "{}: '{}' is '{}', only none is known", model.where(),
                 field, model.string(field, ""));
        }
    }
    const auto dropout = model.find("dropout");
    if (dropout && dropout->json() != 0.0) {
        fail(ErrorCode::unsupported, "tokenizer", "{}: merges are dropped at random (dropout {})",
             model.where(), dropout->json().dump());
    }
    const auto pre = root.find("pre_tokenizer");
    out.model = pre && is_byte_level(pre->json()) ? "gpt2" : "llama";
    const std::string unknown = model.string("unk_token", "");
    out.skeleton["model"] = {{"type", "BPE"},
                             {"unk_token", unknown.empty() ? Json() : Json(unknown)},
                             {"byte_fallback", model.boolean("byte_fallback", false)},
                             {"fuse_unk", model.boolean("fuse_unk", false)},
                             {"ignore_merges", model.boolean("ignore_merges", false)}};
    read_merges(model, out);
}

void read_word_piece(const JsonView& model, Vocabulary& out) {
    out.model = "bert";
    const auto longest = model.find("max_input_chars_per_word");
    out.skeleton["model"] = {{"type", "WordPiece"},
                             {"unk_token", model.string("unk_token", "[UNK]")},
                             {"continuing_subword_prefix", model.string("continuing_subword_prefix", "##")},
                             {"max_input_chars_per_word", longest ? longest->integer(0, INT32_MAX) : 100}};
}

// "vocab" is a list of tokens with their scores.
void read_unigram(const JsonView& model, int64_t vocab_size, Vocabulary& out) {
    out.model = "t5";
    const JsonView vocab = model.at("vocab");
    if (!vocab.json().is_array()) {
        fail(ErrorCode::unsupported, "tokenizer", "{} of a Unigram model is not a list of tokens with scores",
             vocab.where());
    }
    for (size_t id = 0; id < vocab.size(); ++id) {
        const JsonView entry = vocab.at(id);
        if (entry.array().size() != 2 || !entry.at(1).json().is_number())
            entry.expected("a token and its score");
        const double score = entry.at(1).json().get<double>();
        if (!(std::abs(score) < 1e30)) entry.expected("a finite score");
        out.set(static_cast<int64_t>(id), entry.at(0).string(), vocab_size);
        out.scores.push_back(score);
    }
    const auto unknown = model.find("unk_id");
    const auto last = static_cast<int64_t>(vocab.size()) - 1;
    out.skeleton["model"] =
        unigram_model(unknown ? std::optional(static_cast<int32_t>(unknown->integer(0, last))) : std::nullopt,
                      model.boolean("byte_fallback", false), vocab.size());
}

}  // namespace

Vocabulary read_tokenizer_json(const std::filesystem::path& file, int64_t vocab_size) {
    const Json json = read_json_file(file);
    const JsonView root(json, "'" + file.string() + "':");
    const JsonView model = root.at("model");
    Vocabulary out;
    out.source = file.string();
    out.skeleton = Json::object();
    for (const char* field : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
        const auto value = root.find(field);
        out.skeleton[field] = value ? value->object().json() : Json();
    }
    const std::string type = model_type(model);
    if (type == "BPE") {
        read_bpe(root, model, out);
    } else if (type == "WordPiece") {
        read_word_piece(model, out);
    } else if (type == "Unigram") {
        read_unigram(model, vocab_size, out);
    } else {
        fail(ErrorCode::unsupported, "tokenizer",
             "{}: the model is {}, only BPE, WordPiece and Unigram are known", root.where(), type);
    }
    if (type != "Unigram") read_tokens(model, vocab_size, out);
    read_added_tokens(root, vocab_size, out);
    return out;
}

}  // namespace refold
