#include "text/tokenizer.h"

#include <llama.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "core/error.h"
#include "io/gguf_parts.h"
#include "model/load.h"
#include "model/model.h"
#include "model/token_ids.h"
#include "text/llama_guard.h"
#include "text/llama_vocabulary.h"
#include "text/long_runs.h"
#include "text/special_tokens.h"
#include "vocab/end_tokens.h"
#include "vocab/gguf_arrays.h"
#include "vocab/hf_vocab.h"
#include "vocab/pipeline.h"
#include "vocab/vocabulary.h"

namespace refold {
namespace {

// libllama counts in int32.
int32_t checked_size(size_t size, const char* what) {
    if (size > static_cast<size_t>(std::numeric_limits<int32_t>::max()) / 2) {
        fail(ErrorCode::input, "tokenizer", "got {} {}, expected at most 2^30 - split the text", size, what);
    }
    return static_cast<int32_t>(size);
}

std::optional<int32_t> optional_token(llama_token token) {
    if (token == LLAMA_TOKEN_NULL) return std::nullopt;
    return token;
}

// libllama would find these in every text; the pipeline decides where they count.
GgufMetadata without_user_tokens(GgufMetadata metadata) {
    std::vector<int32_t> types = ints_of(metadata, "tokenizer.ggml.token_type");
    std::replace(types.begin(), types.end(), int32_t{kUserDefinedToken}, int32_t{kNormalToken});
    metadata.set("tokenizer.ggml.token_type", int_array(types));
    return metadata;
}

}  // namespace

struct Tokenizer::Impl {
    explicit Impl(LlamaModel loaded)
        : model(std::move(loaded)),
          vocab(llama_model_get_vocab(model.get())),
          type(llama_vocab_type(vocab)),
          size(llama_vocab_n_tokens(vocab)),
          special_tokens(vocab) {}

    Impl(LlamaModel loaded, const GgufMetadata& metadata) : Impl(std::move(loaded)) {
        recursive =
            type == LLAMA_VOCAB_TYPE_BPE && splits_recursively(metadata.string("tokenizer.ggml.pre", ""));
        end_tokens = ints_of(metadata, kEndTokensKey);
    }

    Impl(const GgufMetadata& metadata, const std::string& label) : Impl(load(metadata, label), metadata) {
        if (!HfPipeline::is_described(metadata)) return;
        pipeline.emplace(metadata, label);
        has_bos = metadata.has("tokenizer.ggml.bos_token_id");
        has_eos = metadata.has("tokenizer.ggml.eos_token_id");
    }

    static LlamaModel load(const GgufMetadata& metadata, const std::string& label) {
        return load_llama_vocabulary(
            HfPipeline::is_described(metadata) ? without_user_tokens(metadata) : metadata, label);
    }

    // By libllama alone, without special tokens around the text.
    void append_plain(const std::string& text, std::vector<int32_t>& ids) const {
        const std::vector<int32_t> more = tokenize(text, false, false);
        ids.insert(ids.end(), more.begin(), more.end());
    }

    std::vector<int32_t> encode_plain(const std::string& text, bool parse_special) const {
        return pipeline->encode(
            text, parse_special,
            [this](const std::string& part, std::vector<int32_t>& ids) { append_plain(part, ids); });
    }

    std::vector<int32_t> tokenize(const std::string& text, bool add_special, bool parse_special) const {
        // Parts have few special tokens each, and what surrounds a text is simple here.
        constexpr size_t kPart = 1024;
        const bool cut = parse_special && text.size() > 2 * kPart &&
                         (type == LLAMA_VOCAB_TYPE_BPE || type == LLAMA_VOCAB_TYPE_SPM);
        const bool cut_runs = recursive && text.size() > 2 * kPart;
        if (!cut && !cut_runs) return tokenize_whole(text, add_special, parse_special);
        std::vector<size_t> ends;
        if (cut) ends = special_tokens.cuts(text, kPart);
        if (cut_runs) {
            for (const size_t end : cuts_of_long_runs(text))
                ends.push_back(special_tokens.outside(text, end));
            std::ranges::sort(ends);
            ends.erase(std::ranges::unique(ends).begin(), ends.end());
        }
        if (ends.size() == 1) return tokenize_whole(text, add_special, parse_special);
        std::vector<int32_t> tokens;
        if (add_special && llama_vocab_get_add_bos(vocab)) tokens.push_back(llama_vocab_bos(vocab));
        size_t begin = 0;
        for (const size_t end : ends) {
            const auto part = tokenize_whole(text.substr(begin, end - begin), false, parse_special);
            tokens.insert(tokens.end(), part.begin(), part.end());
            begin = end;
        }
        if (add_special && llama_vocab_get_add_eos(vocab)) tokens.push_back(llama_vocab_eos(vocab));
        return tokens;
    }

    std::vector<int32_t> tokenize_whole(const std::string& text, bool add_special, bool parse_special) const {
        const int32_t length = checked_size(text.size(), "bytes");
        // Enough if every token has at least one byte; else libllama returns the size needed.
        std::vector<int32_t> tokens(text.size() + 8);
        const auto run = [&] {
            return guarded("tokenize the text", [&] {
                return llama_tokenize(vocab, text.data(), length, tokens.data(),
                                      static_cast<int32_t>(tokens.size()), add_special, parse_special);
            });
        };
        int32_t count = run();
        if (count < 0 && count != std::numeric_limits<int32_t>::min()) {
            tokens.resize(static_cast<size_t>(-count));
            count = run();
        }
        if (count < 0)
            fail(ErrorCode::input, "tokenizer", "a text of {} bytes is too long - split it", text.size());
        tokens.resize(static_cast<size_t>(count));
        const auto none = [&](int32_t token) { return token < 0 || token >= size; };
        if (std::ranges::any_of(tokens, none))
            fail(ErrorCode::unsupported, "tokenizer",
                 "the vocabulary has no token for a part of the text and no unknown token");
        return tokens;
    }

    void check(int32_t token) const { check_token_id(token, size, "tokenizer"); }

    void append_piece(int32_t token, bool special, std::string& out) const {
        const size_t before = out.size();
        out.resize(before + 32);
        const auto write = [&](int32_t room) {
            return guarded("spell a token", [&] {
                return llama_token_to_piece(vocab, token, out.data() + before, room, 0, special);
            });
        };
        int32_t bytes = write(32);
        if (bytes < 0) {
            out.resize(before + static_cast<size_t>(-bytes));
            bytes = write(-bytes);
        }
        out.resize(before + static_cast<size_t>(std::max(bytes, 0)));
    }

    LlamaModel model;
    const llama_vocab* vocab;
    enum llama_vocab_type type;
    int32_t size;
    SpecialTokens special_tokens;
    std::optional<HfPipeline> pipeline;  // of a vocabulary from Hugging Face files
    bool has_bos = true, has_eos = true;
    std::vector<int32_t> end_tokens;  // besides those that libllama knows
    bool recursive = false;           // see cuts_of_long_runs()
};

// Only vocabularies from Hugging Face files need more than libllama, or have an architecture that libllama
// lacks.
Tokenizer::Tokenizer(const std::string& path) {
    if (std::filesystem::is_directory(path)) {
        impl_ = std::make_unique<Impl>(load_model(path).metadata, path);
        return;
    }
    const GgufMetadata metadata = open_gguf_parts(path).metadata;
    const bool from_hf = metadata.has(kTokenizerJsonKey) || metadata.has("refold.checkpoint");
    impl_ = from_hf ? std::make_unique<Impl>(metadata, path)
                    : std::make_unique<Impl>(load_llama_vocabulary(path), metadata);
}
Tokenizer::Tokenizer(const GgufMetadata& metadata, const std::string& label)
    : impl_(std::make_unique<Impl>(metadata, label)) {}
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(const std::string& text, bool add_special, bool parse_special) const {
    if (!impl_->pipeline) return impl_->tokenize(text, add_special, parse_special);
    checked_size(text.size(), "bytes");
    std::vector<int32_t> ids = impl_->encode_plain(text, parse_special);
    return add_special ? impl_->pipeline->post_processor().apply(ids) : ids;
}

PairEncoding Tokenizer::encode_pair(const std::string& first, const std::string& second) const {
    if (!impl_->pipeline) {
        fail(ErrorCode::unsupported, "tokenizer",
             "the vocabulary does not say how a pair of texts is joined - convert the model from its Hugging "
             "Face checkpoint");
    }
    checked_size(first.size() + second.size(), "bytes");
    return impl_->pipeline->post_processor().apply(impl_->encode_plain(first, true),
                                                   impl_->encode_plain(second, true));
}

std::string Tokenizer::decode(std::span<const int32_t> tokens, bool special) const {
    checked_size(tokens.size(), "tokens");
    for (const int32_t token : tokens) impl_->check(token);
    if (impl_->pipeline) return impl_->pipeline->decode(tokens, special);
    std::string text;
    // llama_detokenize tidies spaces before punctuation for some byte-level BPE vocabularies; pieces are
    // exact.
    if (impl_->type == LLAMA_VOCAB_TYPE_BPE) {
        text.reserve(tokens.size() * 4 + 32);
        for (const int32_t token : tokens) impl_->append_piece(token, special, text);
        return text;
    }
    // SentencePiece's space in front of a text is removed from the first token only, which must not be a
    // hidden BOS.
    while (!special && !tokens.empty() && llama_vocab_is_control(impl_->vocab, tokens.front())) {
        tokens = tokens.subspan(1);
    }
    text.resize(tokens.size() * 8 + 32);
    const auto detokenize = [&] {
        return guarded("spell the tokens", [&] {
            return llama_detokenize(impl_->vocab, tokens.data(), static_cast<int32_t>(tokens.size()),
                                    text.data(), checked_size(text.size(), "bytes"), false, special);
        });
    };
    int32_t bytes = detokenize();
    if (bytes < 0) {
        text.resize(static_cast<size_t>(-static_cast<int64_t>(bytes)));
        bytes = detokenize();
    }
    text.resize(static_cast<size_t>(std::max(bytes, 0)));
    return text;
}

std::string Tokenizer::piece(int32_t token, bool special) const {
    impl_->check(token);
    if (impl_->pipeline) return impl_->pipeline->piece(token, special);
    std::string text;
    impl_->append_piece(token, special, text);
    return text;
}

int32_t Tokenizer::size() const { return impl_->size; }
bool Tokenizer::adds_bos() const { return llama_vocab_get_add_bos(impl_->vocab); }
// libllama assumes a chat template if the metadata names none.
std::optional<int32_t> Tokenizer::bos() const {
    return optional_token(impl_->has_bos ? llama_vocab_bos(impl_->vocab) : LLAMA_TOKEN_NULL);
}
std::optional<int32_t> Tokenizer::eos() const {
    return optional_token(impl_->has_eos ? llama_vocab_eos(impl_->vocab) : LLAMA_TOKEN_NULL);
}
std::optional<int32_t> Tokenizer::mask() const { return optional_token(llama_vocab_mask(impl_->vocab)); }

bool Tokenizer::is_end_of_generation(int32_t token) const {
    return llama_vocab_is_eog(impl_->vocab, token) ||
           std::ranges::find(impl_->end_tokens, token) != impl_->end_tokens.end();
}

bool Tokenizer::has_chat_template() const {
    return llama_model_chat_template(impl_->model.get(), nullptr) != nullptr;
}

std::string Tokenizer::chat_template() const {
    if (!has_chat_template()) {
        fail(ErrorCode::unsupported, "tokenizer", "the model has no chat template - use plain text instead");
    }
    return llama_model_chat_template(impl_->model.get(), nullptr);
}

std::string Tokenizer::apply_chat_template(std::span<const ChatMessage> messages) const {
    const std::string source = chat_template();
    std::vector<llama_chat_message> chat;
    size_t bytes = 256;
    for (const ChatMessage& message : messages) {
        // libllama takes C strings.
        if (message.role.find('\0') != std::string::npos || message.content.find('\0') != std::string::npos) {
            fail(ErrorCode::input, "tokenizer", "a chat message must not hold a zero byte");
        }
        chat.push_back({message.role.c_str(), message.content.c_str()});
        bytes += 2 * (message.role.size() + message.content.size()) + 64;
    }
    checked_size(bytes, "bytes of messages");
    std::string text(bytes, '\0');
    const auto apply = [&] {
        return llama_chat_apply_template(source.c_str(), chat.data(), chat.size(), true, text.data(),
                                         static_cast<int32_t>(text.size()));
    };
    int32_t length = apply();
    if (length < 0) {
        fail(ErrorCode::unsupported, "tokenizer",
             "the model's chat template is not one that libllama knows - use plain text instead");
    }
    if (static_cast<size_t>(length) > text.size()) {
        text.resize(static_cast<size_t>(length));
        length = apply();
    }
    text.resize(static_cast<size_t>(length));
    return text;
}

}  // namespace refold
