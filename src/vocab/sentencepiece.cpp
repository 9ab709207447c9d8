// Reads tokenizer.model, a SentencePiece ModelProto in the wire format of protocol buffers: only the few
// fields that determine ids.
#include "vocab/sentencepiece.h"

#include <cstring>
#include <span>

#include "core/error.h"
#include "core/files.h"
#include "core/text.h"

namespace refold {
namespace {

// Reads the fields of one message in file order.
class ProtoReader {
public:
    ProtoReader(std::string_view bytes, const std::string& source) : rest_(bytes), source_(source) {}

    // False at the end of the message.
    bool next() {
        if (rest_.empty()) return false;
        const uint64_t tag = varint();
        field_ = tag >> 3;
        switch (tag & 7) {
            case 0: number_ = varint(); break;
            case 1: bytes_ = take(8); break;
            case 2: bytes_ = take(varint()); break;
            case 5: bytes_ = take(4); break;
            default: damaged("a field of an unknown kind");
        }
        wire_ = static_cast<unsigned>(tag & 7);
        return true;
    }

    uint64_t field() const { return field_; }
    std::string_view bytes() const { return expect(2), bytes_; }
    uint64_t number() const { return expect(0), number_; }
    float real() const {
        expect(5);
        float value;
        memcpy(&value, bytes_.data(), sizeof(value));
        return value;
    }

private:
    [[noreturn]] void damaged(const char* what) const {
        fail(ErrorCode::input, "tokenizer", "'{}' is no SentencePiece model: {} - fetch the file again",
             source_, what);
    }
    void expect(unsigned wire) const {
        if (wire_ != wire) damaged("a field is of another type than expected");
    }
    std::string_view take(uint64_t size) {
        if (size > rest_.size()) damaged("a field extends past the end");
        const std::string_view out = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return out;
    }
    uint64_t varint() {
        uint64_t value = 0;
        for (unsigned shift = 0; shift < 64; shift += 7) {
            const auto byte = static_cast<unsigned char>(take(1).front());
            value |= uint64_t{byte & 0x7FU} << shift;
            if (byte < 0x80) return value;
        }
        damaged("a number is too long");
    }

    std::string_view rest_;
    const std::string& source_;
    uint64_t field_ = 0, number_ = 0;
    unsigned wire_ = 0;
    std::string_view bytes_;
};

SentencePiece read_piece(std::string_view bytes, const std::string& source) {
    SentencePiece piece;
    for (ProtoReader in(bytes, source); in.next();) {
        if (in.field() == 1) piece.text = in.bytes();
        if (in.field() == 2) piece.score = in.real();
        if (in.field() == 3) piece.type = in.number();
    }
    if (piece.text.empty() || find_invalid_utf8(piece.text) != std::string::npos ||
        piece.type < kNormalToken || piece.type > kByteToken ||
        !(piece.score > -1e30F && piece.score < 1e30F)) {
        fail(ErrorCode::input, "tokenizer",
             "'{}' has a piece with an invalid text, score or type - fetch the file again", source);
    }
    return piece;
}

SentencePieceModel parse(std::string_view bytes, const std::string& source) {
    SentencePieceModel model;
    model.source = source;
    bool has_trainer = false, has_normalizer = false;
    for (ProtoReader in(bytes, source); in.next();) {
        if (in.field() == 1) {
            model.pieces.push_back(read_piece(in.bytes(), source));
        } else if (in.field() == 2) {  // trainer_spec
            has_trainer = true;
            for (ProtoReader spec(in.bytes(), source); spec.next();) {
                if (spec.field() == 3) model.type = spec.number();
                if (spec.field() == 24) model.suffix = spec.number() != 0;
                if (spec.field() == 40) model.unknown_id = static_cast<int64_t>(spec.number());
                if (spec.field() == 35) model.byte_fallback = spec.number() != 0;
                if (spec.field() == 45) model.unknown = spec.bytes();
            }
        } else if (in.field() == 3) {  // normalizer_spec
            has_normalizer = true;
            for (ProtoReader spec(in.bytes(), source); spec.next();) {
                if (spec.field() == 2) model.char_map = spec.bytes();
                if (spec.field() == 3) model.space_prefix = spec.number() != 0;
                if (spec.field() == 4) model.removes_spaces = spec.number() != 0;
                if (spec.field() == 5) model.escapes_spaces = spec.number() != 0;
            }
        }
    }
    if (model.pieces.empty() || !has_trainer || !has_normalizer) {
        fail(ErrorCode::input, "tokenizer", "'{}' has no {} - fetch the file again", source,
             model.pieces.empty() ? "pieces"
             : has_trainer        ? "normalizer_spec"
                                  : "trainer_spec");
    }
    return model;
}

void check_bpe(const SentencePieceModel& model) {
    const auto refuse = [&](const char* what) {
        fail(ErrorCode::unsupported, "tokenizer", "'{}': a SentencePiece model {} cannot be run exactly",
             model.source, what);
    };
    if (model.type != 2) refuse("that is neither BPE nor unigram (model_type)");
    if (!model.char_map.empty()) refuse("of BPE with character normalization (precompiled_charsmap)");
    if (model.removes_spaces) refuse("of BPE with remove_extra_whitespaces");
    if (!model.escapes_spaces) refuse("without escape_whitespaces");
    if (model.suffix) refuse("with treat_whitespace_as_suffix");
    for (const SentencePiece& piece : model.pieces) {
        if (piece.type == kUnusedToken) refuse("of BPE with unused pieces");
    }
}

Vocabulary read_bpe(const SentencePieceModel& model, int64_t vocab_size) {
    check_bpe(model);
    Vocabulary out;
    out.source = model.source;
    out.model = "llama";
    out.skeleton = sentencepiece_skeleton(model.space_prefix, model.byte_fallback, model.unknown);
    int64_t id = 0;
    for (const SentencePiece& piece : model.pieces) {
        if (piece.type == kUnknownToken) out.skeleton["model"]["unk_token"] = piece.text;
        const bool special = piece.type == kControlToken || piece.type == kUnknownToken;
        if (special || piece.type == kUserDefinedToken) {
            AddedToken token{static_cast<int32_t>(id), piece.text};
            token.special = special;
            token.normalized = !special;  // SentencePiece searches for user symbols in the normalized text
            out.skeleton["added_tokens"].push_back(to_json(token));
        }
        out.scores.push_back(double{piece.score});
        out.set(id++, piece.text, vocab_size);
    }
    return out;
}

}  // namespace

Vocabulary read_sentencepiece(const std::filesystem::path& file, const TokenizerSettings& settings,
                              int64_t vocab_size) {
    const MappedFile map(file.string());
    const std::string_view bytes(reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size());
    const SentencePieceModel model = parse(bytes, file.string());
    return model.type == 1 ? unigram_vocabulary(model, settings, vocab_size) : read_bpe(model, vocab_size);
}

}  // namespace refold
