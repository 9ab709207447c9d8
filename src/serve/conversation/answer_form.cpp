#include "serve/conversation/answer_form.h"

#include <algorithm>

namespace refold {
namespace {

using Shape = ToolForm::Shape;

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// The first row that fits counts.
const std::vector<ToolForm>& forms() {
    static const std::vector<ToolForm> rows = {
        {.name = "Mistral with ids",  // Mistral Small 3.2
         .in_template = {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"},
         .shape = Shape::named,
         .begin = "[TOOL_CALLS]",
         .id_mark = "[CALL_ID]",
         .arguments_mark = "[ARGS]",
         .short_ids = true},
        {.name = "Mistral with names",  // Devstral, Ministral 3
         .in_template = {"[TOOL_CALLS]", "[ARGS]"},
         .shape = Shape::named,
         .begin = "[TOOL_CALLS]",
         .arguments_mark = "[ARGS]",
         .short_ids = true},
        {.name = "Mistral",  // Mistral 7B v0.3
         .in_template = {"[TOOL_CALLS] ["},
         .shape = Shape::list,
         .begin = "[TOOL_CALLS]",
         .before = " ",
         .short_ids = true},
        {.name = "Mistral",  // Mistral Nemo
         .in_template = {"[TOOL_CALLS]"},
         .shape = Shape::list,
         .begin = "[TOOL_CALLS]",
         .short_ids = true},
        {.name = "Hermes",  // Hermes 2 and 3, Qwen2.5, Qwen3, QwQ, Granite 4
         .in_template = {"<tool_call>", "arguments"},
         .shape = Shape::object,
         .begin = "<tool_call>",
         .before = "\n",
         .after = "\n",
         .end = "</tool_call>"},
        {.name = "Llama 3",  // Llama 3.1, 3.2, 3.3
         .in_template = {"<|start_header_id|>", "\"name\": ", "\"parameters\": "},
         .shape = Shape::whole,
         .begin = "<|python_tag|>",
         .arguments_key = "parameters"},
    };
    return rows;
}

// Templates of other forms that share marks with those above.
constexpr std::string_view kOtherForms[] = {"<function=", "<arg_key>", "<tool_calls>", "minimax"};

constexpr ReasoningMarks kReasoning[] = {{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}};

}  // namespace

bool has_word(std::string_view text, std::string_view word) {
    const auto is_part = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    };
    for (size_t at = 0; (at = text.find(word, at)) != std::string_view::npos; ++at) {
        const size_t end = at + word.size();
        if ((at == 0 || !is_part(text[at - 1])) && (end == text.size() || !is_part(text[end]))) return true;
    }
    return false;
}

AnswerForm answer_form(std::string_view chat_template) {
    AnswerForm out;
    out.takes_tools = has_word(chat_template, "tools");
    const bool other =
        std::ranges::any_of(kOtherForms, [&](std::string_view mark) { return has(chat_template, mark); });
    if (out.takes_tools && !other) {
        const auto found = std::ranges::find_if(forms(), [&](const ToolForm& form) {
            return std::ranges::all_of(form.in_template,
                                       [&](std::string_view text) { return has(chat_template, text); });
        });
        if (found != forms().end()) out.tools = &*found;
    }
    for (const ReasoningMarks& marks : kReasoning)
        if (has(chat_template, marks.end)) out.reasoning = marks;
    return out;
}

std::vector<std::string_view> marks_of(const AnswerForm& form) {
    std::vector<std::string_view> marks = {form.reasoning.begin, form.reasoning.end};
    if (const ToolForm* tools = form.tools)
        marks.insert(marks.end(), {tools->begin, tools->end, tools->id_mark, tools->arguments_mark});
    std::erase(marks, "");
    return marks;
}

}  // namespace refold
