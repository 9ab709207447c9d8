#include "serve/endpoint.h"
#include "serve/reply.h"

namespace refold::ready_endpoint {
namespace {

bool is_full(const ServedModel& model, const ServerOptions& options) {
    if (model.encoder != nullptr) return model.encoder->full();
    const SchedulerStatus s = model.scheduler->status();
    return s.waiting >= options.queue + s.slots - s.running;
}

// Whether a balancer should send more requests here: not while every loaded model has all it can take.
void answer(Service& service, const httplib::Request&, httplib::Response& response) {
    if (service.stopping) throw shutting_down();
    size_t loaded = 0, full_ones = 0;
    for (const ListedModel& model : service.models.list()) {
        if (!model.model) continue;
        ++loaded;
        if (is_full(*model.model, service.options)) ++full_ones;
    }
    if (loaded > 0 && full_ones == loaded) {
        ApiError full(503, "all slots are busy and the queue is full", "", "queue_full");
        full.retry_after = 1;
        throw full;
    }
    send(response, {{"status", "ready"}});
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {.method = "GET",
                           .path = "/ready",
                           .summary = "Whether the server takes more requests",
                           .open = true,
                           .quick = true,
                           .answer = answer,
                           .answer_example = R"({"status": "ready"})"};

}  // namespace refold::ready_endpoint
