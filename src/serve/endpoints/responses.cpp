#include "serve/endpoint.h"
#include "serve/responses/responses_answer.h"
#include "serve/run_answer.h"

namespace refold {
namespace {

void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const ResponsesRequest asked = service.read(request, parse_responses_request);
    const auto model = service.model(asked.model);
    model->generating();
    run_answer(service, model, make_answer(asked, *model, [&] { service.check(); }), request, response);
}

}  // namespace

extern const Endpoint responses_endpoint;
const Endpoint responses_endpoint = {.method = "POST",
                                     .path = "/v1/responses",
                                     .summary = "A response to input items (OpenAI)",
                                     .answer = answer,

                                     .body = {.example = R"({"input": "Hello"})",
                                              .parse = parse_only<parse_responses_request>,
                                              .stream_type = "text/event-stream"}};

}  // namespace refold
