#include "text/llama_vocabulary.h"

#include <gguf.h>
#include <llama.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "io/ggml_log.h"
#include "text/llama_guard.h"
#include "text/llama_log.h"
#include "text/vocabulary_check.h"
#include "vocab/hf_vocab.h"
#include "vocab/pre_tokenizers.h"

namespace refold {
namespace {

// libllama asserts, when it tokenizes, that the tokens around a text exist.
void check_special_tokens(const llama_vocab* vocab, const std::string& label) {
    const bool pieces = llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_WPM;
    const auto check = [&](bool needed, llama_token token, const char* name) {
        if (needed && token == LLAMA_TOKEN_NULL)
            fail(ErrorCode::input, "tokenizer",
                 "'{}': its texts get a token {}, but the vocabulary has none - the file is damaged", label,
                 name);
    };
    check(pieces || llama_vocab_get_add_bos(vocab), llama_vocab_bos(vocab), "BOS");
    check(!pieces && llama_vocab_get_add_eos(vocab), llama_vocab_eos(vocab), "EOS");
    check(pieces, llama_vocab_sep(vocab), "SEP");
}

LlamaModel load(const std::string& path, const std::string& label) {
    LlamaModel model(guarded("load the vocabulary", [&] { return open_llama_model(path, true); }));
    if (!model) {
        fail(ErrorCode::unsupported, "tokenizer", "no usable tokenizer in '{}': {}", label, ggml_errors());
    }
    if (llama_vocab_type(llama_model_get_vocab(model.get())) == LLAMA_VOCAB_TYPE_NONE) {
        fail(ErrorCode::unsupported, "tokenizer", "'{}' has no tokenizer (tokenizer.ggml.model is 'none')",
             label);
    }
    return model;
}

void set_array(gguf_context* file, const std::string& key, const GgufArray& array) {
    if (array.element != GgufType::String) {
        gguf_set_arr_data(file, key.c_str(), static_cast<gguf_type>(array.element), array.packed.data(),
                          array.count);
        return;
    }
    std::vector<const char*> strings;
    for (const auto& text : array.strings) strings.push_back(text.c_str());
    gguf_set_arr_str(file, key.c_str(), strings.data(), strings.size());
}

void set_value(gguf_context* file, const std::string& key, const GgufValue& value) {
    const char* const name = key.c_str();
    switch (value.type) {
        case GgufType::String:
            gguf_set_val_str(file, name, std::get<std::string>(value.value).c_str());
            break;
        case GgufType::Bool: gguf_set_val_bool(file, name, std::get<bool>(value.value)); break;
        case GgufType::Array:
            set_array(file, key, *std::get<std::shared_ptr<const GgufArray>>(value.value));
            break;
        // libllama reads all integers of a tokenizer as 32 bits.
        case GgufType::U8:
        case GgufType::U16:
        case GgufType::U32:
        case GgufType::U64:
            gguf_set_val_u32(file, name, static_cast<uint32_t>(std::get<uint64_t>(value.value)));
            break;
        default: break;  // tokenizers have no keys of this type
    }
}

std::vector<char> vocabulary_file(const GgufMetadata& metadata) {
    const std::unique_ptr<gguf_context, decltype(&gguf_free)> file(gguf_init_empty(), gguf_free);
    gguf_set_val_str(file.get(), "general.architecture", "llama");
    for (const auto& [key, value] : metadata.entries()) {
        // refold normalizes and splits these texts itself; libllama need not check how.
        const bool own = metadata.has(kTokenizerJsonKey);
        if (own && key == "tokenizer.ggml.precompiled_charsmap") continue;
        if (key.starts_with("tokenizer.")) set_value(file.get(), key, value);
    }
    if (metadata.string("tokenizer.ggml.pre", "") == kOwnPreTokenizer && metadata.has(kTokenizerJsonKey))
        gguf_set_val_str(file.get(), "tokenizer.ggml.pre", "default");
    std::vector<char> bytes(gguf_get_meta_size(file.get()));
    gguf_get_meta_data(file.get(), bytes.data());
    return bytes;
}

// A file without a name or, where the system has no such files, a temporary file removed at the end.
class TemporaryFile {
public:
    explicit TemporaryFile(std::span<const char> bytes)
        : descriptor_(memfd_create("refold-vocabulary", MFD_CLOEXEC)) {
        path_ = "/proc/self/fd/" + std::to_string(descriptor_);
        if (descriptor_ < 0 || access(path_.c_str(), R_OK) != 0) open_named();
        while (!bytes.empty()) {
            const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
            if (written < 0 && errno == EINTR) continue;
            if (written < 0) {
                fail(ErrorCode::io, "tokenizer", "cannot write the vocabulary to '{}': {}", path_,
                     strerror(errno));
            }
            bytes = bytes.subspan(static_cast<size_t>(written));
        }
    }
    ~TemporaryFile() {
        if (named_) unlink(path_.c_str());
        if (descriptor_ >= 0) close(descriptor_);
    }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;

    const std::string& path() const { return path_; }

private:
    void open_named() {
        if (descriptor_ >= 0) close(descriptor_);
        path_ = (std::filesystem::temp_directory_path() / "refold-vocabulary-XXXXXX").string();
        descriptor_ = mkstemp(path_.data());
        if (descriptor_ < 0) {
            fail(ErrorCode::io, "tokenizer", "cannot create '{}': {}", path_, strerror(errno));
        }
        named_ = true;
    }

    int descriptor_ = -1;
    bool named_ = false;
    std::string path_;
};

}  // namespace

void LlamaModelDeleter::operator()(llama_model* model) const { llama_model_free(model); }

LlamaModel load_llama_vocabulary(const std::string& path) {
    if (access(path.c_str(), R_OK) != 0) {
        fail(ErrorCode::io, "tokenizer", "cannot open '{}': {}", path, strerror(errno));
    }
    check_vocabulary(GgufFile::open(path)->metadata(), path);
    LlamaModel model = load(path, path);
    check_special_tokens(llama_model_get_vocab(model.get()), path);
    return model;
}

LlamaModel load_llama_vocabulary(const GgufMetadata& metadata, const std::string& label) {
    check_vocabulary(metadata, label);
    const std::vector<char> bytes = guarded("take the vocabulary", [&] { return vocabulary_file(metadata); });
    const TemporaryFile file(bytes);
    LlamaModel model = load(file.path(), label);
    // refold adds the tokens around a text itself where it knows how.
    if (!metadata.has(kTokenizerJsonKey)) check_special_tokens(llama_model_get_vocab(model.get()), label);
    return model;
}

}  // namespace refold
