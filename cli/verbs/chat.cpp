#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
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

namespace refold::cli {
namespace {

struct Arguments {
    std::string model, system;
    GenerationOptions generation{.limit = 512};
    SamplingOptions sampling;
    EngineOptions engine;
    ReportOptions report;
};

// A line without its end; nothing at the end of the input. stdio gives up on Ctrl-C, iostreams would wait on.
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
        : options_(a), engine_(make_engine(path, a.engine)), tokenizer_(path), sampler_(a.sampling) {
        // A model without a usable template fails here, before anybody has typed.
        static_cast<void>(tokenizer_.apply_chat_template(std::vector<ChatMessage>{{"user", "?"}}));
        reset();
    }

    void reset() {
        messages_.clear();
        text_.clear();
        tokens_.clear();
        if (!options_.system.empty()) messages_.push_back({"system", options_.system});
    }

    // Throws Error(input), and leaves everything as it was, when the conversation does not fit the context
    // any more.
    Generation answer(const std::string& line, const std::function<void(std::string_view)>& emit) {
        std::vector<ChatMessage> messages = messages_;
        messages.push_back({"user", line});
        const std::string text = tokenizer_.apply_chat_template(messages);
        std::vector<int32_t> tokens = encode(text);
        if (static_cast<int64_t>(tokens.size()) > engine_->context()) {
            fail(ErrorCode::input, "chat",
                 "the conversation has {} tokens, the context holds {} - raise --context or start anew with "
                 "/reset",
                 tokens.size(), engine_->context());
        }
        const size_t known = evaluated(tokens);
        engine_->truncate(static_cast<int64_t>(known));
        const auto fresh = std::span<const int32_t>(tokens).subspan(known);
        Generation reply = generate(*engine_, sampler_, tokenizer_, fresh, options_.generation, emit);
        tokens.insert(tokens.end(), reply.tokens.begin(), reply.tokens.end());
        messages.push_back({"assistant", reply.text});
        messages_ = std::move(messages);
        text_ = text + reply.text;
        tokens_ = std::move(tokens);
        return reply;
    }

private:
    // The conversation so far keeps its tokens: those the model chose need not be what its text is tokenised
    // to.
    std::vector<int32_t> encode(const std::string& text) const {
        if (tokens_.empty() || !text.starts_with(text_)) return tokenizer_.encode(text, true, true);
        std::vector<int32_t> tokens = tokens_;
        const auto added = tokenizer_.encode(text.substr(text_.size()), false, true);
        tokens.insert(tokens.end(), added.begin(), added.end());
        return tokens;
    }

    // How many of `tokens` need not be evaluated again; the last one must be, for its logits. With evicted
    // rows there is no way back but to the start.
    size_t evaluated(const std::vector<int32_t>& tokens) const {
        const auto differ = std::mismatch(tokens.begin(), tokens.end(), tokens_.begin(), tokens_.end()).first;
        const auto same = static_cast<size_t>(differ - tokens.begin());
        const auto length = static_cast<size_t>(engine_->length());
        const size_t known = std::min({same, tokens.size() - 1, length});
        return engine_->evicts() && known < length ? 0 : known;
    }

    const Arguments& options_;
    std::unique_ptr<Engine> engine_;
    Tokenizer tokenizer_;
    Sampler sampler_;
    std::vector<ChatMessage> messages_;
    std::string text_;             // the conversation as the template renders it, last reply included
    std::vector<int32_t> tokens_;  // of text_; the engine holds the first ones, perhaps not the last
};

void reply(Conversation& conversation, const std::string& line, const Arguments& a) {
    const Generation g = conversation.answer(line, [&](std::string_view text) {
        if (!a.report.json) print(text);
    });
    if (a.report.json) {
        print_json({{"role", "assistant"},
                    {"content", g.text},
                    {"tokens", g.tokens},
                    {"stop_reason", g.stop_reason},
                    {"evaluated_tokens", g.evaluated},
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
            // A person can go on with /reset; a script must learn of it by the exit code.
            if (!terminal || error.code() != ErrorCode::input) throw;
            log("{}", error.what());
        }
    }
}

}  // namespace

Action chat_verb(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_model(app, a->model)->required();
    app.add_option("--system", a->system, "System message")->type_name("TEXT");
    app.add_option("-n,--max-tokens", a->generation.limit, "Most tokens of one reply")
        ->type_name("N")
        ->check(at_least(1))
        ->capture_default_str();
    add_sampling_options(app, a->sampling);
    add_engine_options(app, a->engine, "the model's, at most 4096");
    add_eviction_options(app, a->engine.eviction);
    add_report_options(app, a->report);
    add_examples(app, {"refold chat smollm2-135m-instruct --temperature 0.7",
                       "refold chat small.gguf --system \"Answer in one sentence.\"",
                       "echo \"Why is the sky blue?\" | refold chat small.gguf --json"});
    return [a] { chat(*a); };
}

}  // namespace refold::cli
