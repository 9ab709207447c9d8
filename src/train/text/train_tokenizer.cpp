#include "train/text/train_tokenizer.h"

#include <filesystem>
#include <memory>
#include <optional>

#include "core/sha256.h"
#include "io/gguf_parts.h"
#include "model/load.h"
#include "model/model.h"
#include "text/jinja.h"
#include "text/tokenizer.h"

namespace refold {
namespace {

void update(Sha256& hash, std::span<const std::byte> bytes) {
    const uint64_t size = bytes.size();  // separates adjacent strings in the hash
    hash.update(std::as_bytes(std::span(&size, 1)));
    hash.update(bytes);
}
void update(Sha256& hash, const std::string& text) { update(hash, std::as_bytes(std::span(text))); }

struct Hashing {
    Sha256& hash;
    void operator()(const std::string& text) const { update(hash, text); }
    void operator()(const std::shared_ptr<const GgufArray>& array) const {
        update(hash, array->packed);
        for (const auto& text : array->strings) update(hash, text);
    }
    template <typename Number>
    void operator()(Number value) const {
        update(hash, std::as_bytes(std::span(&value, 1)));
    }
};

// Hashes everything that determines how text becomes tokens, the chat template included.
std::string identity_of(const GgufMetadata& metadata) {
    Sha256 hash;
    for (const auto& [key, value] : metadata.entries()) {
        if (!key.starts_with("tokenizer.") && !key.starts_with("refold.tokenizer.")) continue;
        update(hash, key);
        std::visit(Hashing{hash}, value.value);
    }
    return hash.hex();
}

class ChatTemplate {
public:
    explicit ChatTemplate(const Tokenizer& tokenizer) : source_(tokenizer.chat_template()) {
        const auto text = [&](std::optional<int32_t> token) {
            return token ? tokenizer.piece(*token, true) : "";
        };
        variables_ = {{"bos_token", text(tokenizer.bos())}, {"eos_token", text(tokenizer.eos())}};
    }

    std::string render(std::span<const TrainTokenizer::Message> dialogue, bool answer_follows) {
        if (!template_) template_.emplace(source_, JinjaOptions{.keep_whitespace = false});
        auto messages = nlohmann::ordered_json::array();
        for (const auto& message : dialogue)
            messages.push_back({{"role", message.role}, {"content", message.content}});
        variables_["messages"] = std::move(messages);
        variables_["add_generation_prompt"] = answer_follows;
        return template_->render(variables_);
    }

private:
    std::string source_;
    std::optional<JinjaTemplate> template_;
    nlohmann::ordered_json variables_;
};

}  // namespace

TrainTokenizer train_tokenizer(const std::string& model) {
    const bool folder = std::filesystem::is_directory(model);
    const GgufMetadata metadata = folder ? load_model(model).metadata : open_gguf_parts(model).metadata;
    const auto tokenizer =
        folder ? std::make_shared<Tokenizer>(metadata, model) : std::make_shared<Tokenizer>(model);
    TrainTokenizer out;
    out.identity = identity_of(metadata);
    out.tokens = [tokenizer](std::string_view text) {
        return tokenizer->encode(std::string(text), false, false);
    };
    out.template_tokens = [tokenizer](std::string_view text) {
        return tokenizer->encode(std::string(text), false, true);
    };
    if (tokenizer->adds_bos() && tokenizer->bos()) out.before = {*tokenizer->bos()};
    if (tokenizer->eos()) out.after = {*tokenizer->eos()};
    if (tokenizer->has_chat_template()) {
        const auto chat = std::make_shared<ChatTemplate>(*tokenizer);
        out.dialogue = [chat](std::span<const TrainTokenizer::Message> dialogue, bool answer_follows) {
            return chat->render(dialogue, answer_follows);
        };
    }
    return out;
}

}  // namespace refold
