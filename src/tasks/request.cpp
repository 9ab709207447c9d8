#include "tasks/request.h"

#include <algorithm>

#include "core/error.h"
#include "tasks/metrics.h"
#include "tasks/python_text.h"
#include "text/jinja.h"

namespace refold {
namespace {

using TokenIds = std::vector<int32_t>;

bool scores_choices(TaskOutput output) {
    return output == TaskOutput::multiple_choice || output == TaskOutput::masked_lm ||
           output == TaskOutput::label_probability;
}

// Makes the contexts of one task's items.
class Prompter {
public:
    Prompter(const TaskSpec& spec, const Tokenizer& tokenizer, const PromptOptions& options)
        : spec_(spec), multiturn_(options.multiturn) {
        if (!options.chat_template) return;
        chat_.emplace(tokenizer.chat_template(), JinjaOptions{.keep_whitespace = false});
        const auto text = [&](std::optional<int32_t> token) {
            return token ? tokenizer.piece(*token, true) : "";
        };
        variables_ = {{"bos_token", text(tokenizer.bos())},
                      {"eos_token", text(tokenizer.eos())},
                      {"add_generation_prompt", true}};
    }

    std::string context(const TaskItem& item, const std::string& prompt) {
        if (!chat_) return spec_.description + examples(item) + prompt;
        Json messages = Json::array();
        const auto say = [&](const char* role, const std::string& content) {
            messages.push_back({{"role", role}, {"content", content}});
        };
        if (!spec_.description.empty()) say("system", spec_.description);
        if (multiturn_) {
            for (const FewShot& shot : item.shots) {
                say("user", shot.prompt);
                say("assistant", shot.target);
            }
        }
        say("user", (multiturn_ ? "" : examples(item)) + prompt);
        return render(std::move(messages));
    }

private:
    using Json = nlohmann::ordered_json;

    std::string examples(const TaskItem& item) const {
        std::string text;
        for (const FewShot& shot : item.shots)
            text += shot.prompt + spec_.target_delimiter + shot.target + spec_.fewshot_delimiter;
        return text;
    }

    // If the template refuses a system message, renders the other messages.
    std::string render(Json messages) {
        variables_["messages"] = messages;
        try {
            return chat_->render(variables_);
        } catch (const Error& error) {
            if (error.code() != ErrorCode::input || messages.front()["role"] != "system") throw;
            messages.erase(0);
            variables_["messages"] = messages;
            return chat_->render(variables_);
        }
    }

    const TaskSpec& spec_;
    bool multiturn_;
    std::optional<JinjaTemplate> chat_;
    Json variables_;
};

// Makes the token ids of one task's requests.
class Encoder {
public:
    Encoder(const Task& task, const Tokenizer& tokenizer, const PromptOptions& options)
        : task_(task), tokenizer_(tokenizer), options_(options) {
        prefix_ = tokenizer.bos() ? tokenizer.bos() : tokenizer.eos();
        if (prefix_) prefix_text_ = tokenizer.piece(*prefix_, true);
        if (options.encoder) mask_ = tokenizer.mask();
    }

    void encode_pair(Request& r) const {
        TokenIds context, continuation;
        if (r.context.empty()) {
            if (!prefix_)
                bad(r,
                    "has an empty context, and the vocabulary no BOS or EOS token to stand before the rest");
            continuation = tokenizer_.encode(r.continuation, false, true);
            if (!continuation.empty() && continuation.front() == *prefix_) {
                continuation.erase(continuation.begin());
            }
            context = {*prefix_};
        } else {
            const std::string_view kept = rstrip(r.context);
            context = encode(std::string(kept));
            const TokenIds whole = encode(r.context + r.continuation);
            continuation.assign(
                whole.begin() + static_cast<ptrdiff_t>(std::min(context.size(), whole.size())), whole.end());
        }
        if (continuation.empty()) bad(r, "has a continuation '{}' without tokens of its own", r.continuation);
        if (context.empty()) bad(r, "has a context without tokens");
        if (task_.spec.output == TaskOutput::label_probability) continuation.resize(1);
        r.scored = static_cast<int64_t>(continuation.size());
        if (r.scored > options_.max_length) {
            bad(r, "has a continuation of {} tokens, the model sees {} - raise --context", r.scored,
                options_.max_length);
        }
        r.tokens = std::move(context);
        r.tokens.insert(r.tokens.end(), continuation.begin(), continuation.end());
        // The last token is only predicted.
        cut_left(r, options_.max_length + 1);
    }

    void encode_prompt(Request& r) const {
        const int64_t room = options_.max_length - task_.spec.generation.max_tokens;
        if (room < 1) {
            fail(ErrorCode::usage, "tasks",
                 "{}: {} tokens are to be generated, the model sees {} - raise --context", task_.spec.name,
                 task_.spec.generation.max_tokens, options_.max_length);
        }
        r.tokens = encode(r.context);
        if (r.tokens.empty() && prefix_) r.tokens = {*prefix_};
        if (r.tokens.empty()) bad(r, "has an empty prompt");
        cut_left(r, room);
    }

    // The prompt and the masks that are filled at once (LASER's program for RoBERTa).
    void encode_masks(Request& r) const {
        need_mask();
        std::string text = r.context;
        for (int64_t m = 0; m < task_.spec.generation.masks; ++m)
            text += " " + tokenizer_.piece(*mask_, true);
        r.tokens = tokenizer_.encode(text, true, true);
        if (std::count(r.tokens.begin(), r.tokens.end(), *mask_) != task_.spec.generation.masks)
            bad(r, "has another number of masks than the {} that are put behind its prompt",
                task_.spec.generation.masks);
        need_room(r);
    }

    // Prompt and answer without special tokens; the answer's tokens are masked at once (LASER's program).
    void encode_masked_answer(Request& r) const {
        const TokenIds context = tokenizer_.encode(std::string(rstrip(r.context)), false, true);
        r.tokens = tokenizer_.encode(r.context + r.continuation, false, true);
        r.first_scored = static_cast<int64_t>(std::min(context.size(), r.tokens.size()));
        r.scored = static_cast<int64_t>(r.tokens.size()) - r.first_scored;
        r.together = true;
        if (r.scored == 0) bad(r, "has an answer '{}' without tokens of its own", r.continuation);
        need_room(r);
    }

    // Masked tokens replace the marker; the text around them is tokenized independently of the choice.
    void encode_masked(Request& r) const {
        need_mask();
        const size_t marker = r.context.find(kMaskMarker);
        if (marker == std::string::npos || r.context.find(kMaskMarker, marker + 1) != std::string::npos)
            bad(r, "must have {} exactly once in its prompt", kMaskMarker);
        const std::string before = r.context.substr(0, marker);
        const std::string after = r.context.substr(marker + std::string_view(kMaskMarker).size());
        const TokenIds masked =
            tokenizer_.encode(before + tokenizer_.piece(*mask_, true) + after, true, true);
        const auto at = std::find(masked.begin(), masked.end(), *mask_);
        if (at == masked.end()) bad(r, "lost its mask in the tokenizer");
        const auto head = at - masked.begin(), tail = masked.end() - at - 1;

        const TokenIds filled = tokenizer_.encode(before + r.continuation + after, true, true);
        const auto size = static_cast<ptrdiff_t>(filled.size());
        TokenIds choice;
        if (size > head + tail && std::equal(masked.begin(), at, filled.begin()) &&
            std::equal(at + 1, masked.end(), filled.end() - tail)) {
            choice.assign(filled.begin() + head, filled.end() - tail);
        } else {
            choice = tokenizer_.encode(r.continuation, false, true);
        }
        if (choice.empty()) bad(r, "has a choice '{}' without tokens", r.continuation);
        if (task_.spec.output == TaskOutput::label_probability) choice.resize(1);
        r.tokens.assign(masked.begin(), at);
        r.tokens.insert(r.tokens.end(), choice.begin(), choice.end());
        r.tokens.insert(r.tokens.end(), at + 1, masked.end());
        r.first_scored = head;
        r.scored = static_cast<int64_t>(choice.size());
        need_room(r);
    }

    template <typename... Args>
    [[noreturn]] void bad(const Request& r, fmt::format_string<Args...> what, Args&&... args) const {
        fail(ErrorCode::input, "tasks", "{}: item {} {}", task_.spec.name, task_.items[r.item].doc_id,
             fmt::format(what, std::forward<Args>(args)...));
    }

private:
    void need_mask() const {
        if (!mask_)
            fail(ErrorCode::unsupported, "tasks", "{}: the vocabulary has no mask token", task_.spec.name);
    }
    void need_room(const Request& r) const {
        if (static_cast<int64_t>(r.tokens.size()) > options_.max_length)
            bad(r, "has {} tokens, the encoder sees {}", r.tokens.size(), options_.max_length);
    }

    // Adds special tokens as the model's tokenizer does, unless the text already begins with BOS, which a
    // chat template may write.
    TokenIds encode(const std::string& text) const {
        const bool begun = prefix_ && !prefix_text_.empty() && text.starts_with(prefix_text_);
        return tokenizer_.encode(text, !begun, true);
    }

    static void cut_left(Request& r, int64_t limit) {
        r.cut = std::max<int64_t>(0, static_cast<int64_t>(r.tokens.size()) - limit);
        r.tokens.erase(r.tokens.begin(), r.tokens.begin() + r.cut);
    }

    const Task& task_;
    const Tokenizer& tokenizer_;
    const PromptOptions& options_;
    std::optional<int32_t> prefix_, mask_;
    std::string prefix_text_;
};

void check_item(const TaskSpec& spec, const TaskItem& item) {
    const auto bad = [&](const std::string& what) {
        fail(ErrorCode::input, "tasks", "{}: item {} {}", spec.name, item.doc_id, what);
    };
    if (item.prompts.empty()) bad("has no prompt");
    if (spec.output == TaskOutput::generate_until) {
        if (item.references.empty()) bad("has no reference answer");
        return;
    }
    if (item.choices.empty()) bad("has no choices");
    if (item.prompts.size() > 1 && item.choices.size() > 1 && item.prompts.size() != item.choices.size()) {
        bad(fmt::format("has {} prompts and {} choices", item.prompts.size(), item.choices.size()));
    }
    if (!scores_choices(spec.output)) return;
    const auto count = static_cast<int64_t>(std::max(item.prompts.size(), item.choices.size()));
    if (item.gold.empty()) bad("has no right choice");
    for (const int64_t gold : item.gold)
        if (gold < 0 || gold >= count)
            bad(fmt::format("has the right choice {}, expected 0 to {}", gold, count - 1));
}

void check_kind(const TaskSpec& spec, bool encoder) {
    const TaskOutput output = spec.output;
    const bool fills = output == TaskOutput::generate_until && spec.generation.masks > 0;
    if (encoder && output != TaskOutput::masked_lm && output != TaskOutput::label_probability && !fills) {
        fail(ErrorCode::usage, "tasks",
             "{}: the model is an encoder, the task needs one that predicts the next token", spec.name);
    }
    if (!encoder && output == TaskOutput::masked_lm) {
        fail(ErrorCode::usage, "tasks",
             "{}: the model predicts the next token, the task needs an encoder that fills masks", spec.name);
    }
}

}  // namespace

std::vector<Request> make_requests(const Task& task, const Tokenizer& tokenizer,
                                   const PromptOptions& options) {
    const TaskSpec& spec = task.spec;
    check_kind(spec, options.encoder);
    const Encoder encoder(task, tokenizer, options);
    Prompter prompter(spec, tokenizer, options);
    // A chat template ends the user's message; lm-eval then joins without delimiter.
    const std::string delimiter = options.chat_template || spec.output == TaskOutput::loglikelihood ||
                                          spec.output == TaskOutput::masked_lm
                                      ? ""
                                      : spec.target_delimiter;
    std::vector<Request> requests;
    for (size_t i = 0; i < task.items.size(); ++i) {
        const TaskItem& item = task.items[i];
        check_item(spec, item);
        std::vector<std::string> contexts;
        for (const std::string& prompt : item.prompts) contexts.push_back(prompter.context(item, prompt));
        const size_t count =
            spec.output == TaskOutput::generate_until ? 1 : std::max(contexts.size(), item.choices.size());
        for (size_t c = 0; c < count; ++c) {
            Request r;
            r.item = i;
            r.context = contexts[contexts.size() == 1 ? 0 : c];
            if (spec.output == TaskOutput::generate_until) {
                if (options.encoder) {
                    encoder.encode_masks(r);
                } else {
                    encoder.encode_prompt(r);
                }
            } else if (options.encoder) {
                // The prompt is made for decoders: the label comes last.
                if (r.context.find(kMaskMarker) == std::string::npos) r.context += delimiter + kMaskMarker;
                r.continuation = item.choices[item.choices.size() == 1 ? 0 : c];
                encoder.encode_masked(r);
            } else {
                r.continuation = delimiter + item.choices[item.choices.size() == 1 ? 0 : c];
                encoder.encode_pair(r);
            }
            requests.push_back(std::move(r));
        }
        if (!scores_references(spec)) continue;
        Request r;
        r.item = i;
        r.context = contexts[0];
        r.continuation = delimiter + item.references[0];
        if (options.encoder) {
            encoder.encode_masked_answer(r);
        } else {
            encoder.encode_pair(r);
        }
        requests.push_back(std::move(r));
    }
    return requests;
}

}  // namespace refold
