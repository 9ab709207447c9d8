#include "serve/endpoint.h"
#include "serve/openai_answer.h"
#include "serve/run_answer.h"

namespace refold {
namespace {

void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const ChatRequest asked = service.read(request, parse_chat_request);
    const auto model = service.model(asked.model);
    model->generating();
    run_answer(service, model, make_answer(asked, *model, [&] { service.check(); }), request, response);
}

}  // namespace

extern const Endpoint chat_completions_endpoint;
const Endpoint chat_completions_endpoint = {
    .method = "POST",
    .path = "/v1/chat/completions",
    .summary = "The next message of a conversation (OpenAI)",
    .answer = answer,
    .body = {.example = R"({"messages": [{"role": "user", "content": "Hello"}]})",
             .parse = parse_only<parse_chat_request>,
             .stream_type = "text/event-stream"}};

}  // namespace refold
