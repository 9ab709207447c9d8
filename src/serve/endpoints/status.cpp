#include <algorithm>

#include "serve/endpoint.h"
#include "serve/metrics.h"
#include "serve/reply.h"

namespace refold::status_endpoint {
namespace {

using Json = nlohmann::ordered_json;

// The model that `name` names; else the first that is loaded.
const ListedModel& chosen(const std::vector<ListedModel>& models, const std::string& name) {
    const auto find = [&](auto&& is) { return std::ranges::find_if(models, is); };
    auto found = models.end();
    if (!name.empty()) {
        found = find([&](const ListedModel& m) { return m.info.name == name; });
        if (found == models.end()) throw no_such_model(name, names_of(models));
    } else {
        found = find([](const ListedModel& m) { return m.model != nullptr; });
    }
    return found == models.end() ? models.front() : *found;
}

Json scheduler_json(const SchedulerStatus& s) {
    Json finished = Json::object();
    for (const auto& [reason, count] : s.finished) finished[finish_reason_name(reason)] = count;
    return {{"slots", s.slots},
            {"running", s.running},
            {"waiting", s.waiting},
            {"kv_tokens", s.kv_tokens},
            {"kv_tokens_used", s.kv_tokens_used},
            {"prompt_tokens", s.prompt_tokens},
            {"known_tokens", s.known_tokens},
            {"generated_tokens", s.generated_tokens},
            {"steps", s.steps},
            {"rows", s.rows},
            {"last_rows", s.last_rows},
            {"last_rows_at", s.last_rows_at},
            {"exits", s.exits},
            {"drafted", s.drafted},
            {"accepted", s.accepted},
            {"refused", s.refused},
            {"finished", std::move(finished)}};
}

// "?model=NAME": of this model; else of the first one that is loaded.
void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const std::vector<ListedModel> models = service.models.list();
    const ListedModel& shown = chosen(models, request.get_param_value("model"));
    Json out = {{"model", shown.info.name},
                {"description", shown.info.description},
                {"context", shown.info.context},
                {"chat", shown.model && shown.model->chat.problem().empty()}};
    const bool generates = shown.model && shown.model->scheduler != nullptr;
    out.update(scheduler_json(generates ? shown.model->scheduler->status() : SchedulerStatus{}));
    Json list = Json::array();
    for (const ListedModel& model : models)
        list.push_back({{"model", model.info.name},
                        {"state", model_state_name(model.state)},
                        {"memory_bytes", model.info.memory_bytes},
                        {"loads", model.loads}});
    out["models"] = std::move(list);
    out["connections"] = service.connections();
    out["uptime_seconds"] = service.uptime_seconds();
    response.set_header("Cache-Control", "no-store");
    send(response, out);
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {
    .method = "GET",
    .path = "/status",
    .summary = "The model and what the engine does",
    .quick = true,
    .answer = answer,
    .answer_example =
        R"({"model": "NAME", "description": {}, "context": 4096, "chat": true, "slots": 8, "running": 0, "waiting": 0,
        "kv_tokens": 0, "kv_tokens_used": 0, "prompt_tokens": 0, "known_tokens": 0, "generated_tokens": 0, "steps": 0,
        "rows": 0, "last_rows": 0, "last_rows_at": [0], "exits": [0], "drafted": 0, "accepted": 0, "refused": 0,
        "finished": {}, "models": [{"model": "NAME", "state": "loaded", "memory_bytes": 0, "loads": 1}],
        "connections": 1, "uptime_seconds": 0.5})"};

}  // namespace refold::status_endpoint
