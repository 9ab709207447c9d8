#include "serve/openai_answer.h"

#include <utility>

#include "serve/reply.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

OpenAiAnswer::OpenAiAnswer(const ApiRequest& request, const ServedModel& model, const Head& head)
    : ApiAnswer(request, model.limits),
      head_(head),
      id_(new_id(head.id_prefix)),
      model_(model.info.name),
      created_(seconds_since_1970()),
      include_usage_(request.include_usage),
      return_exits_(request.return_exits) {}

Json OpenAiAnswer::object(Json choices) const {
    return {{"id", id_},
            {"object", stream ? head_.chunk_object : head_.object},
            {"created", created_},
            {"model", model_},
            {"choices", std::move(choices)}};
}

Json OpenAiAnswer::usage_json() const {
    return {{"prompt_tokens", usage.prompt_tokens},
            {"completion_tokens", usage.completion_tokens},
            {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
            {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

Json OpenAiAnswer::body(const std::vector<GenerationEvent>& all) {
    Json choices = Json::array();
    for (size_t i = 0; i < all.size(); ++i) {
        choices.push_back(choice(i, all[i]));
        if (return_exits_) choices.back()["exits"] = all[i].exits;
    }
    Json out = object(std::move(choices));
    out["usage"] = usage_json();
    return out;
}

std::string OpenAiAnswer::part(size_t index, const GenerationEvent& event) {
    std::vector<Json> all = pieces(index, event);
    if (return_exits_) {
        // An event whose text waits for more has no pieces.
        std::vector<int32_t>& exits = exits_[index];
        exits.insert(exits.end(), event.exits.begin(), event.exits.end());
        if (!all.empty()) all.back()["exits"] = std::exchange(exits, {});
    }
    std::string out;
    for (Json& piece : all) {
        Json chunk = object(Json::array({std::move(piece)}));
        if (include_usage_) chunk["usage"] = nullptr;
        out += server_sent(chunk);
    }
    return out;
}

std::string OpenAiAnswer::end() {
    std::string out;
    if (include_usage_) {
        Json chunk = object(Json::array());
        chunk["usage"] = usage_json();
        out = server_sent(chunk);
    }
    return out + "data: [DONE]\n\n";
}

std::string OpenAiAnswer::broken(const ApiError& error) { return "data: " + error_body(error) + "\n"; }

}  // namespace refold
