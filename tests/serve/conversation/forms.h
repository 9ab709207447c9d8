// Answers in the forms of templates, which are given by the texts that they have.
#pragma once

#include "serve/conversation/answer_parser.h"

namespace refold {

inline constexpr const char* kHermes = R"(tools <tool_call>\n{"name": <function-name>, "arguments": <args>})";
inline constexpr const char* kNemo = "tools [TOOL_CALLS][";
inline constexpr const char* kMistral7 = "tools [TOOL_CALLS] [";
inline constexpr const char* kDevstral = "tools [TOOL_CALLS] [ARGS]";
inline constexpr const char* kSmall32 = "tools [TOOL_CALLS] [CALL_ID] [ARGS]";
inline constexpr const char* kLlama = R"(tools <|start_header_id|> {"name": name, "parameters": args})";
inline constexpr const char* kQwen3 = R"(tools <tool_call> "arguments" </think>)";

inline AnswerParts parts_of(const char* chat_template,
                            AnswerParts::Reasoning reasoning = AnswerParts::Reasoning::none) {
    const AnswerForm form = answer_form(chat_template);
    return {.calls = form.tools, .marks = form.reasoning, .reasoning = reasoning};
}

}  // namespace refold
