#include "serve/responses/output_items.h"

#include "serve/answer.h"
#include "serve/reply.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;
using Kind = AnswerPart::Kind;

}  // namespace

std::string OutputItems::event(const char* type, const Json& data) {
    Json out = {{"type", type}, {"sequence_number", number_++}};
    out.update(data);
    return server_sent(out, type);
}

std::string OutputItems::item_event(const char* type, const Json& data) {
    Json out = {{"item_id", item_["id"]}, {"output_index", items_.size()}};
    if (open_ != Kind::call) out["content_index"] = 0;
    out.update(data);
    return event(type, out);
}

Json OutputItems::content_part() const {
    if (open_ == Kind::reasoning) return {{"type", "reasoning_text"}, {"text", text_}};
    return {{"type", "output_text"},
            {"text", text_},
            {"annotations", Json::array()},
            {"logprobs", Json::array()}};
}

std::string OutputItems::begin(const AnswerPart& part) {
    open_ = part.kind;
    text_.clear();
    switch (part.kind) {
        case Kind::reasoning:
            item_ = {{"type", "reasoning"},
                     {"id", new_id("rs")},
                     {"summary", Json::array()},
                     {"content", Json::array()}};
            break;
        case Kind::content:
            item_ = {{"type", "message"},
                     {"id", new_id("msg")},
                     {"role", "assistant"},
                     {"content", Json::array()}};
            break;
        default:
            item_ = {{"type", "function_call"},
                     {"id", new_id("fc")},
                     {"call_id", part.id.empty() ? new_call_id(short_ids_) : part.id},
                     {"name", part.text},
                     {"arguments", ""}};
    }
    item_["status"] = "in_progress";
    std::string out = event("response.output_item.added", {{"output_index", items_.size()}, {"item", item_}});
    if (part.kind != Kind::call) out += item_event("response.content_part.added", {{"part", content_part()}});
    return out;
}

std::string OutputItems::add(const AnswerPart& part) {
    std::string out;
    const Kind kind = part.kind == Kind::arguments ? Kind::call : part.kind;
    if (part.kind == Kind::call || open_ != kind) {
        out += end(true);
        out += begin(part);
    }
    if (part.kind == Kind::call) return out;
    text_ += part.text;
    switch (part.kind) {
        case Kind::reasoning:
            out += item_event("response.reasoning_text.delta", {{"delta", part.text}});
            break;
        case Kind::content:
            out +=
                item_event("response.output_text.delta", {{"delta", part.text}, {"logprobs", Json::array()}});
            break;
        default: out += item_event("response.function_call_arguments.delta", {{"delta", part.text}});
    }
    return out;
}

std::string OutputItems::end(bool complete) {
    if (!open_) return "";
    std::string out;
    switch (*open_) {
        case Kind::reasoning:
            reasoning_ += text_;
            out += item_event("response.reasoning_text.done", {{"text", text_}});
            break;
        case Kind::content:
            out += item_event("response.output_text.done", {{"text", text_}, {"logprobs", Json::array()}});
            break;
        default:
            item_["arguments"] = text_;
            out += item_event("response.function_call_arguments.done",
                              {{"name", item_["name"]}, {"arguments", text_}});
    }
    if (open_ != Kind::call) {
        item_["content"].push_back(content_part());
        out += item_event("response.content_part.done", {{"part", content_part()}});
    }
    item_["status"] = complete ? "completed" : "incomplete";
    out += event("response.output_item.done", {{"output_index", items_.size()}, {"item", item_}});
    items_.push_back(std::move(item_));
    open_.reset();
    return out;
}

}  // namespace refold
