#include "serve/endpoint.h"
#include "serve/messages/messages_answer.h"
#include "serve/reply.h"

namespace refold::count_tokens_endpoint {
namespace {

void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const MessagesRequest asked = service.read(request, parse_count_tokens_request);
    const auto model = service.model(asked.model);
    const Turn turn = messages_turn(asked, *model, [&] { service.check(); });
    send(response, {{"input_tokens", turn.prompt.size()}});
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {.method = "POST",
                           .path = "/v1/messages/count_tokens",
                           .summary = "The tokens of a conversation (Anthropic)",
                           .answer = answer,
                           .answer_example = R"({"input_tokens": 1})",
                           .error = messages_error_body,
                           .body = {.example = R"({"messages": [{"role": "user", "content": "Hello"}]})",
                                    .parse = parse_only<parse_count_tokens_request>}};

}  // namespace refold::count_tokens_endpoint
