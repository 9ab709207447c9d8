#include "serve/endpoint.h"
#include "serve/messages/messages_answer.h"
#include "serve/run_answer.h"

namespace refold::messages_endpoint {
namespace {

void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const MessagesRequest asked = service.read(request, parse_messages_request);
    const auto model = service.model(asked.model);
    model->generating();
    run_answer(service, model, make_answer(asked, *model, [&] { service.check(); }), request, response);
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {
    .method = "POST",
    .path = "/v1/messages",
    .summary = "The next message of a conversation (Anthropic)",
    .answer = answer,
    .answer_example =
        R"({"id": "msg-1", "type": "message", "role": "assistant", "model": "NAME", "content": [{"type": "text", "text?": "",
            "thinking?": "", "signature?": "", "id?": "1", "name?": "f", "input?": {}}],
        "stop_reason": "end_turn", "stop_sequence": null, "usage": {"input_tokens": 1,
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}})",
    .error = messages_error_body,
    .body = {.example = R"({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16})",
             .parse = parse_only<parse_messages_request>,
             .stream_type = "text/event-stream"}};

}  // namespace refold::messages_endpoint
