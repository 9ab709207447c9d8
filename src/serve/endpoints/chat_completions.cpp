#include "serve/endpoint.h"
#include "serve/openai_answer.h"
#include "serve/run_answer.h"

namespace refold::chat_completions_endpoint {
namespace {

void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const ChatRequest asked = service.read(request, parse_chat_request);
    const auto model = service.model(asked.model);
    model->generating();
    run_answer(service, model, make_answer(asked, *model, [&] { service.check(); }), request, response);
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {
    .method = "POST",
    .path = "/v1/chat/completions",
    .summary = "The next message of a conversation (OpenAI)",
    .answer = answer,
    .answer_example =
        R"({"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": "NAME", "choices": [{"index": 0,
        "message": {"role": "assistant", "content": null, "refusal": null, "reasoning_content?": "",
            "tool_calls?": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        "logprobs": null, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}})",
    .body = {.example = R"({"messages": [{"role": "user", "content": "Hello"}]})",
             .parse = parse_only<parse_chat_request>,
             .stream_type = "text/event-stream"}};

}  // namespace refold::chat_completions_endpoint
