#include "serve/endpoint.h"
#include "serve/ollama/answer.h"
#include "serve/ollama/model.h"
#include "serve/reply.h"
#include "serve/run_answer.h"

namespace refold::ollama_chat_endpoint {
namespace {

void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const OllamaChatRequest asked = service.read(request, parse_ollama_chat);
    const auto model = service.model(asked.model);
    model->generating();
    if (asked.messages.empty()) return send(response, loaded_chat(model->info));
    run_answer(service, model, make_answer(asked, *model, [&] { service.check(); }), request, response);
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {
    .method = "POST",
    .path = "/api/chat",
    .summary = "The next message of a conversation (Ollama)",
    .answer = answer,
    .answer_example = R"({"model": "NAME", "message": {"role": "assistant", "content": "", "thinking?": "",
            "tool_calls?": [{"function": {"name": "f", "arguments": {}}}]},
        "created_at": "2026-01-01T00:00:00Z", "done": true, "done_reason": "stop",
        "total_duration?": 0, "load_duration?": 0, "prompt_eval_count?": 1, "prompt_eval_duration?": 0,
        "eval_count?": 1, "eval_duration?": 0})",
    .error = ollama_error_body,
    .body = {.example = R"({"messages": [{"role": "user", "content": "Hello"}]})",
             .parse = parse_only<parse_ollama_chat>,
             .stream_type = "application/x-ndjson"}};

}  // namespace refold::ollama_chat_endpoint
