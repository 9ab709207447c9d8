#include "serve/responses/responses_answer.h"

#include "serve/conversation/turn.h"
#include "serve/reply.h"
#include "serve/responses/output_items.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

class ResponsesAnswer : public ApiAnswer {
public:
    ResponsesAnswer(const ResponsesRequest& request, const ServedModel& model, Turn turn)
        : ApiAnswer(request, model.limits),
          id_(new_id("resp")),
          model_(model.info.name),
          created_(seconds_since_1970()),
          echoed_(request.echoed),
          tokenizer_(model.tokenizer),
          parser_(turn.parts),
          items_(turn.parts.calls != nullptr && turn.parts.calls->short_ids) {
        add_prompt(std::move(turn.prompt), request.max_tokens.value_or(model.limits.context), "input");
        set_structure(std::move(turn.structure));
    }

    Json body(const std::vector<GenerationEvent>& all) override {
        take(all[0]);
        return response();
    }

    std::string begin() override {
        std::string out;
        for (const char* const type : {"response.created", "response.in_progress"})
            out += items_.event(type, {{"response", response()}});
        return out;
    }
    std::string part(size_t, const GenerationEvent& event) override { return take(event); }
    std::string end() override {
        return items_.event(complete_ ? "response.completed" : "response.incomplete",
                            {{"response", response()}});
    }
    std::string broken(const ApiError& error) override {
        status_ = "failed";
        Json failed = response();
        failed["error"] = {{"code", error.code.empty() ? "server_error" : error.code},
                           {"message", error.message}};
        return items_.event("response.failed", {{"response", std::move(failed)}});
    }

private:
    std::string take(const GenerationEvent& event) {
        std::string out;
        for (const AnswerPart& part : parser_.parts(event)) out += items_.add(part);
        if (!event.finished) return out;
        const bool long_enough = std::string_view(finish_name(event)) != "length";
        complete_ = long_enough && !parser_.cut();
        if (!complete_) reason_ = long_enough ? "stop" : "max_output_tokens";
        status_ = complete_ ? "completed" : "incomplete";
        return out + items_.end(complete_);
    }

    Json response() const {
        const bool ended = std::string_view(status_) != "in_progress";
        Json out = {{"id", id_},
                    {"object", "response"},
                    {"created_at", created_},
                    {"status", status_},
                    {"background", false},
                    {"error", nullptr},
                    {"incomplete_details", complete_ ? Json() : Json({{"reason", reason_}})},
                    {"model", model_},
                    {"output", items_.items()},
                    {"previous_response_id", nullptr},
                    {"store", false},
                    {"truncation", "disabled"}};
        out.update(echoed_);
        out["usage"] = ended ? usage_json() : Json();
        return out;
    }

    Json usage_json() const {
        const std::string& reasoning = items_.reasoning();
        return {{"input_tokens", usage.prompt_tokens},
                {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
                {"output_tokens", usage.completion_tokens},
                {"output_tokens_details",
                 {{"reasoning_tokens",
                   reasoning.empty() ? 0 : tokenizer_.encode(reasoning, false, false).size()}}},
                {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
    }

    const std::string id_, model_;
    const int64_t created_;
    const Json echoed_;
    const Tokenizer& tokenizer_;
    AnswerParser parser_;
    OutputItems items_;
    const char* status_ = "in_progress";
    bool complete_ = true;
    const char* reason_ = "";  // why it is not complete
};

}  // namespace

std::unique_ptr<ApiAnswer> make_answer(const ResponsesRequest& request, const ServedModel& model,
                                       const std::function<void()>& check) {
    return std::make_unique<ResponsesAnswer>(
        request, model, make_turn(request, request.options.format, "input", model, check));
}

}  // namespace refold
