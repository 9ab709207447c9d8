#include "serve/chat_request.h"
#include "serve/conversation/turn.h"
#include "serve/endpoint.h"
#include "serve/reply.h"

namespace refold::apply_template_endpoint {
namespace {

// As llama.cpp's server has it: the body of a chat completion, of which nothing is generated.
void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const ChatRequest asked = service.read(request, parse_chat_request);
    const auto model = service.model(asked.model);
    send(response, {{"prompt", turn_text(asked, "messages", *model, [&] { service.check(); })}});
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {.method = "POST",
                           .path = "/apply-template",
                           .summary = "The text of a conversation by the chat template (llama.cpp's server)",
                           .answer = answer,
                           .answer_example = R"({"prompt": ""})",
                           .body = {.example = R"({"messages": [{"role": "user", "content": "Hello"}]})",
                                    .parse = parse_only<parse_chat_request>}};

}  // namespace refold::apply_template_endpoint
