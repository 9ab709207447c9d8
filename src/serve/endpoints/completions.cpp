#include "serve/endpoint.h"
#include "serve/openai_answer.h"
#include "serve/run_answer.h"

namespace refold::completions_endpoint {
namespace {

void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const CompletionRequest asked = service.read(request, parse_completion_request);
    const auto model = service.model(asked.model);
    model->generating();
    run_answer(service, model, make_answer(asked, *model, [&] { service.check(); }), request, response);
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {
    .method = "POST",
    .path = "/v1/completions",
    .summary = "Texts that go on (OpenAI)",
    .answer = answer,
    .answer_example = R"({"id": "cmpl-1", "object": "text_completion", "created": 0, "model": "NAME",
        "choices": [{"text": "", "index": 0, "logprobs": null, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}})",
    .body = {.example = R"({"prompt": "Once upon a time"})",
             .parse = parse_only<parse_completion_request>,
             .stream_type = "text/event-stream"}};

}  // namespace refold::completions_endpoint
