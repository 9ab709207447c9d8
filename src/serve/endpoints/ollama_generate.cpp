#include "serve/endpoint.h"
#include "serve/ollama/answer.h"
#include "serve/ollama/model.h"
#include "serve/reply.h"
#include "serve/run_answer.h"

namespace refold::ollama_generate_endpoint {
namespace {

void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const OllamaGenerateRequest asked = service.read(request, parse_ollama_generate);
    const auto model = service.model(asked.model);
    model->generating();
    if (asked.prompt.empty()) return send(response, loaded_generate(model->info));
    run_answer(service, model, make_answer(asked, *model, [&] { service.check(); }), request, response);
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {
    .method = "POST",
    .path = "/api/generate",
    .summary = "An answer to a prompt (Ollama)",
    .answer = answer,
    .answer_example =
        R"({"model": "NAME", "response": "", "thinking?": "", "created_at": "2026-01-01T00:00:00Z", "done": true, "done_reason": "stop",
        "total_duration?": 0, "load_duration?": 0, "prompt_eval_count?": 1, "prompt_eval_duration?": 0,
        "eval_count?": 1, "eval_duration?": 0})",
    .error = ollama_error_body,
    .body = {.example = R"({"prompt": "Hello"})",
             .parse = parse_only<parse_ollama_generate>,
             .stream_type = "application/x-ndjson"}};

}  // namespace refold::ollama_generate_endpoint
