// Takes the text of an answer apart while it is generated: reasoning, content, calls of tools.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "generation/request.h"
#include "serve/conversation/answer_form.h"
#include "serve/conversation/call_reader.h"

namespace refold {

struct AnswerPart {
    enum class Kind {
        reasoning,
        content,
        call,       // a call begins; `text` is the tool's name
        arguments,  // of the latest call, as JSON
    };
    Kind kind;
    std::string text;
    std::string id = {};  // of a call, if the model gives it one

    bool operator==(const AnswerPart&) const = default;
};

// What an answer may hold.
struct AnswerParts {
    enum class Reasoning { none, may_begin, begun };
    const ToolForm* calls = nullptr;  // null: none
    ReasoningMarks marks = {};
    Reasoning reasoning = Reasoning::none;  // begun: by the prompt
    bool json = false;                      // content may be JSON that was asked for
};

class AnswerParser {
public:
    explicit AnswerParser(const AnswerParts& parts);

    // Adds text. Returns the parts that are final: text that may still become a mark, and white space that
    // may stand before one, are held back. What looks like a call and is none stays content; of
    // one that the end cuts before its name, nothing is shown.
    std::vector<AnswerPart> push(std::string_view text);
    // Returns the rest at the end. `cut`: the model had more to say, beginning with these bytes (a stop text)
    // or with unknown ones (empty): the beginning of a mark is no text then.
    std::vector<AnswerPart> finish(std::optional<std::string_view> cut = {});
    // The parts of an event's text, and the rest if it is the last one.
    std::vector<AnswerPart> parts(const GenerationEvent& event);
    // Whether the answer ended within a call.
    bool cut() const { return cut_; }

private:
    enum class State { start, reasoning, content, name, list, call, after };

    bool step();
    bool step_start();
    bool step_reasoning();
    bool step_content();
    bool step_name();
    bool step_list();
    bool step_call();
    bool step_after();
    void begin_calls(bool marked);
    void begin_call();
    void take_back(bool cut = false);
    // Length of the longest end of the first `size` of `held_` that could have become the mark.
    size_t cut_mark(size_t size, std::string_view mark) const;
    void take(size_t bytes);
    void add(AnswerPart::Kind kind, std::string text, std::string id = {});
    // Whether `held_` from `at` on is a beginning of the mark that more text may complete.
    bool may_become(size_t at, std::string_view mark) const;
    size_t skip_space() const;

    const AnswerParts of_;
    State state_ = State::start;
    bool last_ = false;                // no more text comes
    std::optional<std::string> next_;  // as finish() was told
    bool may_reason_ = false;          // the answer may begin with reasoning
    bool drop_space_ = false;          // before content that begins
    bool said_ = false;                // the call's name has been told
    bool marked_ = false;              // what has begun can only be a call
    bool cut_ = false;
    CallReader reader_;
    std::string name_, id_;
    std::string raw_;  // of a call that may still be none
    std::string held_;
    std::vector<AnswerPart> out_;
};

}  // namespace refold
