// A chat template with tools and reasoning, and servers that use it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "serve/running_server.h"

namespace refold {

// As the templates of Qwen's models, in short.
inline constexpr const char* kTemplate =
    R"({%- if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}
{%- for message in messages %}<|{{ message.role }}|>{{ message.content }}
{%- if message.tool_calls %}{% for call in message.tool_calls %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% if enable_thinking %}<think>
{% endif %}{% endif %}{# </think> #})";

inline constexpr const char* kCall =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";

inline RunningOptions answering(const std::string& answer, const char* chat_template = kTemplate) {
    RunningOptions setup;
    setup.chat_template = chat_template;
    setup.scheduler.prefixes = true;
    setup.answer = answer;
    setup.engine.context = setup.engine.kv_tokens = 4096;
    return setup;
}

// The events of a stream whose events have names.
inline std::vector<std::pair<std::string, json>> named_events_of(const std::string& body) {
    std::vector<std::pair<std::string, json>> events;
    for (size_t at = 0; at < body.size();) {
        const size_t line = body.find('\n', at), end = body.find("\n\n", at);
        EXPECT_EQ(body.substr(at, 7), "event: ");
        EXPECT_EQ(body.substr(line + 1, 6), "data: ");
        events.emplace_back(body.substr(at + 7, line - at - 7),
                            json::parse(body.substr(line + 7, end - line - 7)));
        at = end + 2;
    }
    return events;
}

}  // namespace refold
