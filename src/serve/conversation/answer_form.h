// How the model of a chat template writes its answers: where reasoning is, and what calls of tools look like.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace refold {

// A form of calls. Its texts are those that the templates of its models write for calls of earlier turns.
struct ToolForm {
    enum class Shape {
        object,  // begin, {"name": NAME, "arguments": {...}}, end; again for the next call
        list,    // begin, [{"name": NAME, "arguments": {...}}, ...]
        named,   // begin, NAME, (id_mark, ID,) arguments_mark, {...}; again for the next call
        whole,   // the answer is {"name": NAME, "parameters": {...}} and nothing else
    };
    std::string_view name;                      // in messages
    std::vector<std::string_view> in_template;  // texts that all of its templates have
    Shape shape;
    std::string_view begin;                    // Shape::whole: may be missing
    std::string_view before = "", after = "";  // white space inside begin and end
    std::string_view end = "";
    std::string_view arguments_key = "arguments";
    std::string_view id_mark = "", arguments_mark = "";
    bool short_ids = false;  // templates take ids of nine letters and digits only
};

struct ReasoningMarks {
    std::string_view begin, end;  // empty: the model writes none
};

// What a chat template tells of its model.
struct AnswerForm {
    bool takes_tools = false;         // the template has a place for them
    const ToolForm* tools = nullptr;  // null: none, or a form that is not known
    ReasoningMarks reasoning;
};

// Whether the template has a word that is not part of a longer one, such as the name of a variable.
bool has_word(std::string_view chat_template, std::string_view word);

AnswerForm answer_form(std::string_view chat_template);

// The marks of a form, which may be special tokens of a vocabulary.
std::vector<std::string_view> marks_of(const AnswerForm& form);

}  // namespace refold
