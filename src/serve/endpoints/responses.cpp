#include "serve/endpoint.h"
#include "serve/responses/responses_answer.h"
#include "serve/run_answer.h"

namespace refold::responses_endpoint {
namespace {

void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const ResponsesRequest asked = service.read(request, parse_responses_request);
    const auto model = service.model(asked.model);
    model->generating();
    run_answer(service, model, make_answer(asked, *model, [&] { service.check(); }), request, response);
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {
    .method = "POST",
    .path = "/v1/responses",
    .summary = "A response to input items (OpenAI)",
    .answer = answer,
    .answer_example =
        R"({"id": "resp-1", "object": "response", "created_at": 0, "status": "completed", "background": false,
        "error": null, "incomplete_details": null, "model": "NAME", "output": [{"type": "message", "id": "msg-1",
            "role?": "assistant", "status": "completed", "summary?": [], "call_id?": "1", "name?": "f", "arguments?": "{}",
            "content?": [{"type": "output_text", "text": "", "annotations?": [], "logprobs?": []}]}],
        "previous_response_id": null, "store": false, "truncation": "disabled", "instructions": null,
        "max_output_tokens": null, "metadata": {}, "parallel_tool_calls": true, "reasoning": {}, "temperature": null,
        "text": {}, "tool_choice": null, "tools": [], "top_p": null, "user": null,
        "usage": {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 1, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 2}})",

    .body = {.example = R"({"input": "Hello"})",
             .parse = parse_only<parse_responses_request>,
             .stream_type = "text/event-stream"}};

}  // namespace refold::responses_endpoint
