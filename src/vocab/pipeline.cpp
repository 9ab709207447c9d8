#include "vocab/pipeline.h"

#include <algorithm>

#include "core/error.h"
#include "core/text.h"
#include "vocab/gguf_arrays.h"
#include "vocab/hf_vocab.h"
#include "vocab/pre_tokenizers.h"
#include "vocab/unicode.h"
#include "vocab/vocabulary.h"

namespace refold {
namespace {

constexpr const char* kMark = "\u2581";

std::vector<AddedToken> read_added(const JsonView& json) {
    std::vector<AddedToken> added;
    const auto list = json.find("added_tokens");
    if (!list) return added;
    for (size_t i = 0; i < list->array().size(); ++i) {
        const JsonView token = list->at(i);
        const auto id = static_cast<int32_t>(token.at("id").integer(0, INT32_MAX));
        added.push_back(read_added_token(token, id));
    }
    return added;
}

}  // namespace

bool HfPipeline::is_described(const GgufMetadata& metadata) { return metadata.has(kTokenizerJsonKey); }

HfPipeline::HfPipeline(const GgufMetadata& metadata, const std::string& label)
    : model_(metadata.string("tokenizer.ggml.model")), tokens_(hf_tokens(metadata)) {
    const Json skeleton = parse_vocabulary_json(metadata.string(kTokenizerJsonKey), label);
    const JsonView json(skeleton, label + ":");
    if (const auto normalizer = json.find("normalizer")) normalizer_ = Normalizer(*normalizer);
    // SentencePiece searches for its symbols as spelled, Hugging Face for their normalized form.
    const bool by_score = model_ == "llama" && !metadata.has("tokenizer.ggml.merges");
    added_ = AddedTokens(read_added(json), by_score ? Normalizer() : normalizer_);
    if (const auto processor = json.find("post_processor")) post_processor_ = PostProcessor(*processor);
    if (const auto decoder = json.find("decoder")) decoder_ = Decoder(*decoder);
    const Json config = parse_vocabulary_json(metadata.string(kTokenizerConfigKey, "{}"), label);
    clean_up_ = JsonView(config, label + ":").boolean("clean_up_tokenization_spaces", false);
    check_ids(label);
    if (model_ == "gpt2") {
        read_byte_level(metadata, json);
    } else if (model_ == "llama") {
        read_metaspace(json);
        read_merges(metadata, json.at("model"));
    } else if (model_ == "bert") {
        read_word_pieces(json);
    } else if (model_ == "t5") {
        read_unigram(metadata, json);
    } else {
        fail(ErrorCode::unsupported, "tokenizer",
             "{}: tokenizer.ggml.model '{}' is not one of gpt2, llama, bert, t5", label, model_);
    }
}

void HfPipeline::check_ids(const std::string& label) const {
    const auto check = [&](int32_t id, const char* what) {
        if (id < size()) return;
        fail(ErrorCode::input, "tokenizer", "{}: a token of {} has id {}, but the vocabulary ends at {}",
             label, what, id, size() - 1);
    };
    for (const auto& token : added_.all()) check(token.id, "added_tokens");
    for (const auto& item : post_processor_.single()) check(item.id, "post_processor");
    for (const auto& item : post_processor_.pair()) check(item.id, "post_processor");
}

TokenIds HfPipeline::model_ids() const {
    TokenIds ids;
    ids.reserve(tokens_.size());
    for (size_t id = 0; id < tokens_.size(); ++id) ids.emplace(tokens_[id], static_cast<int32_t>(id));
    return ids;
}

void HfPipeline::leave_own(const JsonView& model, TokenIds& ids) {
    const auto added = model.find(kAddedOnly);
    for (size_t i = 0; added && i < added->array().size(); ++i) ids.erase(added->at(i).string());
}

std::optional<int32_t> HfPipeline::unknown_id(const JsonView& model, const TokenIds& ids) const {
    const std::string unknown = model.string("unk_token", "");
    if (unknown.empty()) return std::nullopt;
    const auto it = ids.find(unknown);
    if (it == ids.end()) {
        fail(ErrorCode::input, "tokenizer", "{}: unk_token '{}' is no token - the file is damaged",
             model.where(), unknown);
    }
    return it->second;
}

void HfPipeline::read_byte_level(const GgufMetadata& metadata, const JsonView& json) {
    const JsonView model = json.at("model");
    const JsonView pre = json.at("pre_tokenizer");
    const bool ignore_merges = model.boolean("ignore_merges", false);
    const PreTokenizer recognized = recognize_pre_tokenizer(pre, ignore_merges);
    const std::vector<std::string>& merges = strings_of(metadata, "tokenizer.ggml.merges");
    TokenIds ids = model_ids();
    // libllama would take a word for the added token that it spells.
    const auto added = model.find(kAddedOnly);
    bool words = false;
    if (ignore_merges && added) {
        const Splitter splitter(pre);
        for (size_t i = 0; i < added->array().size(); ++i)
            words = words || splitter({added->at(i).string(), true}).size() == 1;
    }
    if (!recognized.exact || words) {
        splitter_ = Splitter(pre);
        MergeBpe::Options options;
        options.unknown = unknown_id(model, ids);
        leave_own(model, ids);
        options.fuse_unknown = model.boolean("fuse_unk", false);
        options.ignore_merges = ignore_merges;
        bpe_ = MergeBpe::by_rank(std::move(ids), merges, options);
        return;
    }
    add_prefix_space_ = recognized.add_prefix_space;
    // Only checks that the merges name tokens; libllama does the merging.
    MergeBpe::by_rank(ids, merges, {});
    for (unsigned byte = 0; byte < 256; ++byte) {
        std::string character;
        append_utf8(character, byte_level_character(static_cast<unsigned char>(byte)));
        if (ids.contains(character)) continue;
        missing_bytes_.resize(256);
        missing_bytes_[byte] = true;
    }
}

void HfPipeline::read_metaspace(const JsonView& json) {
    const auto pre = json.find("pre_tokenizer");
    const std::string type = pre ? pre->at("type").string() : "";
    if (type == "Metaspace") {
        splitter_ = Splitter(*pre);
        return;
    }
    // Gemma's split at spaces does nothing, because its normalizer has replaced them.
    const bool no_op = !pre || (type == "Split" && pre->at("pattern").string("String", "") == " ");
    if (no_op && normalizer_.replaces_spaces()) return;
    fail(ErrorCode::unsupported, "tokenizer",
         "{}: a SentencePiece vocabulary with the pre-tokenizer {} is not known", json.where(),
         pre ? pre->json().dump() : "null");
}

void HfPipeline::read_merges(const GgufMetadata& metadata, const JsonView& model) {
    TokenIds ids = model_ids();
    MergeBpe::Options options;
    options.unknown = unknown_id(model, ids);
    options.byte_fallback = model.boolean("byte_fallback", false);
    options.fuse_unknown = model.boolean("fuse_unk", false);
    options.ignore_merges = model.boolean("ignore_merges", false);
    leave_own(model, ids);
    if (metadata.has("tokenizer.ggml.merges")) {
        bpe_ = MergeBpe::by_rank(std::move(ids), strings_of(metadata, "tokenizer.ggml.merges"), options);
        return;
    }
    std::vector<float> scores = floats_of(metadata, "tokenizer.ggml.scores");
    const std::vector<int32_t> types = ints_of(metadata, "tokenizer.ggml.token_type");
    if (scores.size() != tokens_.size() || types.size() != tokens_.size()) {
        fail(ErrorCode::input, "tokenizer", "got {} tokens, {} scores and {} types, expected as many of each",
             tokens_.size(), scores.size(), types.size());
    }
    std::erase_if(ids, [&](const auto& entry) {
        const int32_t type = types[static_cast<size_t>(entry.second)];
        return type != kNormalToken && type != kByteToken;
    });
    bpe_ = MergeBpe::by_score(std::move(ids), std::move(scores), options);
}

void HfPipeline::read_word_pieces(const JsonView& json) {
    const JsonView model = json.at("model");
    const auto pre = json.find("pre_tokenizer");
    if (!pre || pre->at("type").string() != "BertPreTokenizer") {
        fail(ErrorCode::unsupported, "tokenizer", "{}: WordPiece with the pre-tokenizer {} is not known",
             json.where(), pre ? pre->json().dump() : "null");
    }
    TokenIds ids = model_ids();
    WordPiece::Options options;
    const auto unknown = unknown_id(model, ids);
    if (!unknown) model.at("unk_token").expected("a token");
    options.unknown = *unknown;
    leave_own(model, ids);
    options.prefix = model.string("continuing_subword_prefix", "##");
    if (options.prefix != "##") {
        fail(ErrorCode::unsupported, "tokenizer", "{}: continuing_subword_prefix is '{}', only '##' is known",
             model.where(), options.prefix);
    }
    if (const auto longest = model.find("max_input_chars_per_word")) {
        options.longest_word = static_cast<size_t>(longest->integer(0, INT32_MAX));
    }
    word_piece_.emplace(std::move(ids), std::move(options));
}

void HfPipeline::read_unigram(const GgufMetadata& metadata, const JsonView& json) {
    if (const auto pre = json.find("pre_tokenizer")) splitter_ = Splitter(*pre);
    const JsonView model = json.at("model");
    std::vector<double> scores = doubles_of(metadata, kTokenizerScoresKey);
    if (scores.empty()) {
        const std::vector<float> rounded = floats_of(metadata, "tokenizer.ggml.scores");
        scores.assign(rounded.begin(), rounded.end());
    }
    const auto own = static_cast<size_t>(model.at(kOwnSize).integer(0, size()));
    if (scores.size() < own) {
        fail(ErrorCode::input, "tokenizer", "got {} scores, expected one for each of {} tokens",
             scores.size(), own);
    }
    scores.resize(own);
    Unigram::Options options;
    if (const auto unknown = model.find("unk_id"))
        options.unknown = static_cast<int32_t>(unknown->integer(0, static_cast<int64_t>(own) - 1));
    options.byte_fallback = model.boolean("byte_fallback", false);
    unigram_.emplace(std::vector<std::string>(tokens_.begin(), tokens_.begin() + static_cast<ptrdiff_t>(own)),
                     std::move(scores), options);
}

std::vector<int32_t> HfPipeline::encode(const std::string& text, bool parse_special,
                                        const ByteLevelBpe& bpe) const {
    std::vector<int32_t> ids;
    for (const TextPart& part : added_.split(text, normalizer_, parse_special)) {
        if (part.token >= 0) {
            ids.push_back(part.token);
        } else {
            encode_text(part, bpe, ids);
        }
    }
    return ids;
}

void HfPipeline::encode_text(const TextPart& part, const ByteLevelBpe& bpe, std::vector<int32_t>& ids) const {
    if (word_piece_) {
        word_piece_->encode(part.text, ids);
    } else if (unigram_ || bpe_) {
        // A unigram model needs whole characters.
        std::string text = unigram_ ? replace_invalid_utf8(part.text) : part.text;
        for (const std::string& word : splitter_({std::move(text), part.at_start})) {
            if (unigram_) {
                unigram_->encode(word, ids);
            } else {
                bpe_->encode(word, ids);
            }
        }
    } else {
        encode_bytes(add_prefix_space_ && !part.text.starts_with(' ') ? " " + part.text : part.text, bpe,
                     ids);
    }
}

void HfPipeline::encode_bytes(const std::string& text, const ByteLevelBpe& bpe,
                              std::vector<int32_t>& ids) const {
    if (!missing_bytes_.empty()) {
        for (const char c : text) {
            const auto byte = static_cast<unsigned char>(c);
            if (!missing_bytes_[byte]) continue;
            fail(ErrorCode::unsupported, "tokenizer",
                 "the vocabulary has no token for the byte 0x{:02X} of the text", byte);
        }
    }
    bpe(text, ids);
}

std::string HfPipeline::decode(std::span<const int32_t> ids, bool special) const {
    std::vector<std::string> texts;
    texts.reserve(ids.size());
    for (const int32_t id : ids) {
        const AddedToken* added = added_.find(id);
        if (!special && added != nullptr && added->special) continue;
        texts.push_back(tokens_[static_cast<size_t>(id)]);
    }
    std::string text = decoder_(std::move(texts));
    return clean_up_ ? clean_up_spaces(std::move(text)) : text;
}

std::string HfPipeline::piece(int32_t id, bool special) const {
    const std::string& token = tokens_[static_cast<size_t>(id)];
    if (const AddedToken* added = added_.find(id)) return added->special && !special ? "" : token;
    if (is_byte_level()) return byte_level_bytes(token);
    if (model_ == "bert") return token.starts_with("##") ? token.substr(2) : " " + token;
    if (const int byte = byte_of_token(token); byte >= 0) return std::string(1, static_cast<char>(byte));
    std::string text = token;
    const std::string mark = kMark;
    for (size_t at; (at = text.find(mark)) != std::string::npos;) text.replace(at, mark.size(), " ");
    return text;
}

}  // namespace refold
