#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <optional>

#include "cli/generate.h"
#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "hub/resolve.h"

namespace refold::cli::chat_verb {
namespace {

struct Arguments {
    std::string model, system;
    GenerationOptions generation{.max_tokens = 512};
    DraftOptions drafts;
    EngineOptions engine;
    ReportOptions report;
};

// One line without its line end; nullopt at the end of input. Unlike std::getline, it returns on Ctrl-C.
std::optional<std::string> read_line() {
    char* buffer = nullptr;
    size_t capacity = 0;
    const ssize_t length = getline(&buffer, &capacity, stdin);
    const std::unique_ptr<char, decltype(&free)> owner(buffer, free);
    check_interrupt();
    if (length < 0) return std::nullopt;
    std::string line(buffer, static_cast<size_t>(length));
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    return line;
}

class Conversation {
public:
    Conversation(const Arguments& a, const std::string& path)
        : tokenizer_(path),
          model_(load_with_drafts(path, tokenizer_, a.engine, a.drafts)),
          generator_(model_, tokenizer_, a.generation),
          system_(a.system) {
        // Throws at once if the model has no usable chat template, not after the first message.
        static_cast<void>(tokenizer_.apply_chat_template(std::vector<ChatMessage>{{"user", "?"}}));
        reset();
    }

    void reset() {
        messages_.clear();
        text_.clear();
        tokens_.clear();
        generator_.forget();
        if (!system_.empty()) messages_.push_back({"system", system_});
    }

    // Throws Error(input) if the conversation no longer fits the context; the conversation is then unchanged.
    GenerationResult answer(const std::string& line, const std::function<void(std::string_view)>& emit) {
        std::vector<ChatMessage> messages = messages_;
        messages.push_back({"user", line});
        const std::string text = tokenizer_.apply_chat_template(messages);
        std::vector<int32_t> tokens = encode(text);
        if (static_cast<int64_t>(tokens.size()) > model_.engine->capabilities().context) {
            fail(ErrorCode::input, "chat",
                 "the conversation has {} tokens, the context holds {} - raise --context or start anew with "
                 "/reset",
                 tokens.size(), model_.engine->capabilities().context);
        }
        GenerationResult reply = generator_.generate(tokens, emit);
        tokens.insert(tokens.end(), reply.tokens.begin(), reply.tokens.end());
        messages.push_back({"assistant", reply.text});
        messages_ = std::move(messages);
        text_ = text + reply.text;
        tokens_ = std::move(tokens);
        return reply;
    }

private:
    // Earlier turns keep their tokens: the tokens that a model generates may differ from the tokenization of
    // their text.
    std::vector<int32_t> encode(const std::string& text) const {
        if (tokens_.empty() || !text.starts_with(text_)) return tokenizer_.encode(text, true, true);
        std::vector<int32_t> tokens = tokens_;
        const auto added = tokenizer_.encode(text.substr(text_.size()), false, true);
        tokens.insert(tokens.end(), added.begin(), added.end());
        return tokens;
    }

    Tokenizer tokenizer_;
    LoadedModel model_;
    TextGenerator generator_;
    const std::string system_;
    std::vector<ChatMessage> messages_;
    std::string text_;             // the rendered conversation, with the last reply
    std::vector<int32_t> tokens_;  // of text_
};

void reply(Conversation& conversation, const std::string& line, const Arguments& a) {
    const GenerationResult g = conversation.answer(line, [&](std::string_view text) {
        if (!a.report.json) print(text);
    });
    if (a.report.json) {
        print_json({{"role", "assistant"},
                    {"content", g.text},
                    {"tokens", g.tokens},
                    {"stop_reason", stop_reason(g)},
                    {"evaluated_tokens", g.evaluated_tokens},
                    {"prefill_tokens_per_s", g.prefill_tokens_per_s()},
                    {"decode_tokens_per_s", g.decode_tokens_per_s()}},
                   true);
    } else {
        print("\n");
    }
}

void chat(const Arguments& a) {
    require_utf8(a.system, "--system");
    Conversation conversation(a, resolve_model(a.model));
    const bool terminal = isatty(STDIN_FILENO) != 0;
    if (terminal && !a.report.quiet) log("/reset forgets the conversation, /exit or Ctrl-D ends");
    for (;;) {
        if (terminal) note("> ");
        const std::optional<std::string> line = read_line();
        if (!line || *line == "/exit") break;
        if (line->empty()) continue;
        if (*line == "/reset") {
            conversation.reset();
            continue;
        }
        try {
            require_utf8(*line, "the message");
            reply(conversation, *line, a);
        } catch (const Error& error) {
            // A person at a terminal can continue with /reset; a script needs the exit code.
            if (!terminal || error.code() != ErrorCode::input) throw;
            log("{}", error.what());
        }
    }
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_model(app, a->model)->required();
    app.add_option("--system", a->system, "System message")->type_name("TEXT");
    add_generation_options(app, a->generation, "Most tokens of one reply");
    add_draft_options(app, a->drafts);
    add_engine_options(app, a->engine, "the model's, at most 4096");
    add_eviction_options(app, a->engine.eviction);
    add_report_options(app, a->report);
    add_examples(app, {"refold chat smollm2-135m-instruct --temperature 0.7",
                       "refold chat small.gguf --system \"Answer in one sentence.\"",
                       "echo \"Why is the sky blue?\" | refold chat small.gguf --json"});
    return [a] { chat(*a); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"chat", VerbGroup::running, "Talk with a model", declare};

}  // namespace refold::cli::chat_verb
