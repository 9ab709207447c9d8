#include "serve/metrics.h"

#include "eval/speed.h"
#include "serve/endpoint.h"

namespace refold::metrics_endpoint {
namespace {

void answer(Service& service, const httplib::Request&, httplib::Response& response) {
    ServerStatus all;
    for (const ListedModel& model : service.models.list()) {
        if (!model.info.parent.empty()) continue;  // its model's scheduler counts
        ModelStatus& status = all.models.emplace_back();
        status.name = model.info.name;
        status.memory_bytes = model.model ? model.info.memory_bytes : 0;
        status.loads = model.loads;
        if (model.model && model.model->scheduler != nullptr)
            status.scheduler = model.model->scheduler->status();
        if (model.model && model.model->encoder != nullptr)
            all.encoders.push_back({model.info.name, model.model->encoder->status()});
    }
    for (const auto& holder : service.keys.holders()) all.keys.push_back({holder->name(), holder->counts()});
    all.http = service.counts.snapshot();
    all.connections = service.connections();
    all.uptime_seconds = service.uptime_seconds();
    all.resident_bytes = resident_bytes();
    all.version = service.options.version;
    response.set_content(prometheus_text(all), "text/plain; version=0.0.4; charset=utf-8");
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {.method = "GET",
                           .path = "/metrics",
                           .summary = "Metrics for Prometheus",
                           .quick = true,
                           .type = "text/plain",
                           .answer = answer};

}  // namespace refold::metrics_endpoint
