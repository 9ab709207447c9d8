// Fuzzes the bodies of requests: for any bytes, every endpoint reads a request, or refuses it with an
// ApiError of status 400 whose body is JSON. The first line of an input is the endpoint's path.
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "serve/chat_request.h"
#include "serve/completion_request.h"
#include "serve/endpoint.h"
#include "serve/messages/messages_request.h"
#include "serve/responses/responses_request.h"
#include "target.h"

namespace {

// Beside the examples of all endpoints.
const std::string kBodies[] = {
    R"(/v1/completions
{"model": "m", "prompt": ["caf\u00e9", [1, 2, 3]], "max_tokens": 16, "temperature": 0.7, "top_p": 0.9, "n": 2,
        "best_of": 2, "stream": true, "stream_options": {"include_usage": true}, "logprobs": 5, "echo": true,
        "stop": ["a", "b"], "seed": 7, "top_k": 40, "ignore_eos": false, "suffix": null, "logit_bias": {}})",
    R"(/v1/completions
{"prompt": "a", "guided_choice": ["x", "y"], "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1,
        "repetition_penalty": 1.1})",
    R"(/v1/chat/completions
{"model": "m", "messages": [{"role": "system", "content": "S"}, {"role": "user", "content":
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"role": "assistant", "content": null,
        "tool_calls": []}, {"role": "user", "content": "c", "name": "n"}, {"role": "assistant", "content": null,
        "reasoning_content": "r", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f",
        "arguments": "{\"a\": [1]}"}}]}, {"role": "tool", "tool_call_id": "c", "content": "d"}],
        "max_completion_tokens": 5, "logprobs": true, "top_logprobs": 3, "tools": [{"type": "function", "function":
        {"name": "f", "strict": true, "parameters": {"type": "object", "properties": {"a": {}}}}}], "tool_choice":
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function":
        {"name": "f"}}]}}, "chat_template_kwargs": {"a": 1}, "response_format": {"type": "text"}})",
    R"(/v1/chat/completions
{"messages": [{"role": "user", "content": "u"}], "response_format": {"type": "json_schema", "json_schema":
        {"name": "n", "strict": true, "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}})",
    R"(/v1/messages
{"max_tokens": 5, "system": [{"type": "text", "text": "S"}], "messages": [{"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "R"}, {"type": "tool_use", "id": "t",
        "name": "f", "input": {"z": 1}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",
        "content": [{"type": "text", "text": "d"}]}]}], "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "f"}, "thinking": {"type": "enabled"}, "stop_sequences": ["a"]})",
    R"(/v1/responses
{"instructions": "I", "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "R"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "d"}], "tools": [{"type": "function", "name": "f",
        "parameters": {"type": "object"}}], "text": {"format": {"type": "json_schema", "schema": {}}},
        "reasoning": {"effort": "low"}, "store": true, "include": []})",
    R"(/api/chat
{"model": "m", "messages": [{"role": "user", "content": "u", "images": []}, {"role": "assistant", "thinking": "r",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}, {"role": "tool", "tool_name": "f",
        "content": "d"}], "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "think": "low",
        "options": {"num_ctx": 64, "temperature": 0, "stop": ["a"]}, "format": "json", "keep_alive": "5m"})"};

constexpr std::string_view kWords[] = {"{",
                                       "}",
                                       "[",
                                       "]",
                                       "\"",
                                       ",",
                                       ":",
                                       "null",
                                       "1e400",
                                       "-1",
                                       "\\ud800",
                                       "\xE2",
                                       "true",
                                       "messages",
                                       "prompt",
                                       "content",
                                       "\"role\"",
                                       "0.5",
                                       "[[[[[[[[",
                                       "tools",
                                       "guided_json",
                                       "grammar",
                                       "guided_regex",
                                       "logit_bias",
                                       "stream_options",
                                       "schema"};

const refold::Endpoint* endpoint_at(std::string_view path) {
    const auto all = refold::endpoints();
    const auto found = std::ranges::find_if(all, [&](const refold::Endpoint* endpoint) {
        return endpoint->body.parse != nullptr && path == endpoint->path;
    });
    return found == all.end() ? nullptr : *found;
}

// Whether a request that was read has nothing to answer.
bool is_empty(std::string_view path, std::string_view body) {
    if (path == "/v1/completions") return refold::parse_completion_request(body).prompts.empty();
    if (path == "/v1/chat/completions") return refold::parse_chat_request(body).messages.empty();
    if (path == "/v1/messages") return refold::parse_messages_request(body).messages.empty();
    if (path == "/v1/responses") return refold::parse_responses_request(body).messages.empty();
    return false;
}

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    const size_t line_end = std::min(input.find('\n'), input.size());
    const std::string_view path = input.substr(0, line_end);
    const std::string_view body = input.substr(std::min(line_end + 1, input.size()));
    const Endpoint* const endpoint = endpoint_at(path);
    if (endpoint == nullptr) return false;
    try {
        endpoint->body.parse(body);
    } catch (const ApiError& error) {
        const auto said = nlohmann::json::parse(endpoint->error(error), nullptr, false);
        if (error.status != 400 || error.message.empty() || !said.contains("error")) abort();
        return false;
    }
    if (is_empty(path, body)) abort();
    return true;
}

std::vector<std::string> refold::fuzz_seeds() {
    std::vector<std::string> seeds(std::begin(kBodies), std::end(kBodies));
    for (const Endpoint* const endpoint : endpoints())
        if (endpoint->body.parse != nullptr)
            seeds.push_back(std::string(endpoint->path) + "\n" + endpoint->body.example);
    return seeds;
}
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
