#include "text/tokenizer.h"

#include <llama.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "io/ggml_log.h"
#include "text/llama_log.h"

namespace refold {
namespace {

struct ModelDeleter {
    void operator()(llama_model* model) const { llama_model_free(model); }
};
using ModelPtr = std::unique_ptr<llama_model, ModelDeleter>;

ModelPtr load_vocabulary(const std::string& path) {
    if (access(path.c_str(), R_OK) != 0) {
        fail(ErrorCode::io, "tokenizer", "cannot open '{}': {}", path, strerror(errno));
    }
    init_llama();
    clear_ggml_errors();
    ggml_backend_dev_t no_devices[] = {nullptr};
    llama_model_params params = llama_model_default_params();
    params.devices = no_devices;
    params.n_gpu_layers = 0;
    params.load_mode = LLAMA_LOAD_MODE_MMAP;
    params.vocab_only = true;
    ModelPtr model(llama_model_load_from_file(path.c_str(), params));
    if (!model)
        fail(ErrorCode::unsupported, "tokenizer", "no usable tokenizer in '{}': {}", path, ggml_errors());
    if (llama_vocab_type(llama_model_get_vocab(model.get())) == LLAMA_VOCAB_TYPE_NONE) {
        fail(ErrorCode::unsupported, "tokenizer", "'{}' has no tokenizer (tokenizer.ggml.model is 'none')",
             path);
    }
    return model;
}

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

}  // namespace

struct Tokenizer::Impl {
    explicit Impl(const std::string& path)
        : model(load_vocabulary(path)),
          vocab(llama_model_get_vocab(model.get())),
          type(llama_vocab_type(vocab)),
          size(llama_vocab_n_tokens(vocab)) {}

    void check(int32_t token) const {
        if (token < 0 || token >= size) {
            fail(ErrorCode::input, "tokenizer", "token id {} is not in the vocabulary of {}", token, size);
        }
    }

    void append_piece(int32_t token, bool special, std::string& out) const {
        const size_t before = out.size();
        out.resize(before + 32);
        int32_t bytes = llama_token_to_piece(vocab, token, out.data() + before, 32, 0, special);
        if (bytes < 0) {
            out.resize(before + static_cast<size_t>(-bytes));
            bytes = llama_token_to_piece(vocab, token, out.data() + before, -bytes, 0, special);
        }
        out.resize(before + static_cast<size_t>(std::max(bytes, 0)));
    }

    ModelPtr model;
    const llama_vocab* vocab;
    enum llama_vocab_type type;
    int32_t size;
};

Tokenizer::Tokenizer(const std::string& gguf_path) : impl_(std::make_unique<Impl>(gguf_path)) {}
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(const std::string& text, bool add_special, bool parse_special) const {
    const int32_t length = checked_size(text.size(), "bytes");
    // Enough for every vocabulary whose tokens hold at least a byte; others say how much they need.
    std::vector<int32_t> tokens(text.size() + 8);
    const auto tokenize = [&] {
        const auto room = static_cast<int32_t>(tokens.size());
        return llama_tokenize(impl_->vocab, text.data(), length, tokens.data(), room, add_special,
                              parse_special);
    };
    int32_t count = tokenize();
    if (count < 0 && count != std::numeric_limits<int32_t>::min()) {
        tokens.resize(static_cast<size_t>(-count));
        count = tokenize();
    }
    if (count < 0)
        fail(ErrorCode::input, "tokenizer", "a text of {} bytes is too long - split it", text.size());
    return {tokens.begin(), tokens.begin() + count};
}

std::string Tokenizer::decode(std::span<const int32_t> tokens, bool special) const {
    checked_size(tokens.size(), "tokens");
    for (const int32_t token : tokens) impl_->check(token);
    std::string text;
    // llama_detokenize tidies spaces before punctuation for some byte-level BPE vocabularies; pieces are
    // exact.
    if (impl_->type == LLAMA_VOCAB_TYPE_BPE) {
        text.reserve(tokens.size() * 4 + 32);
        for (const int32_t token : tokens) impl_->append_piece(token, special, text);
        return text;
    }
    // The space that SentencePiece puts in front of a text is removed from the first token only: a hidden BOS
    // must not take its place.
    while (!special && !tokens.empty() && llama_vocab_is_control(impl_->vocab, tokens.front())) {
        tokens = tokens.subspan(1);
    }
    text.resize(tokens.size() * 8 + 32);
    const auto detokenize = [&] {
        return llama_detokenize(impl_->vocab, tokens.data(), static_cast<int32_t>(tokens.size()), text.data(),
                                checked_size(text.size(), "bytes"), false, special);
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
    std::string text;
    impl_->append_piece(token, special, text);
    return text;
}

int32_t Tokenizer::size() const { return impl_->size; }
bool Tokenizer::adds_bos() const { return llama_vocab_get_add_bos(impl_->vocab); }
std::optional<int32_t> Tokenizer::bos() const { return optional_token(llama_vocab_bos(impl_->vocab)); }
std::optional<int32_t> Tokenizer::eos() const { return optional_token(llama_vocab_eos(impl_->vocab)); }

bool Tokenizer::is_end_of_generation(int32_t token) const { return llama_vocab_is_eog(impl_->vocab, token); }

bool Tokenizer::has_chat_template() const {
    return llama_model_chat_template(impl_->model.get(), nullptr) != nullptr;
}

std::string Tokenizer::apply_chat_template(std::span<const ChatMessage> messages) const {
    const char* const chat_template = llama_model_chat_template(impl_->model.get(), nullptr);
    if (chat_template == nullptr) {
        fail(ErrorCode::unsupported, "tokenizer", "the model has no chat template - use plain text instead");
    }
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
        return llama_chat_apply_template(chat_template, chat.data(), chat.size(), true, text.data(),
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
