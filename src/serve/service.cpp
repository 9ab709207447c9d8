#include "serve/service.h"

#include <algorithm>

#include "serve/body_json.h"

namespace refold {

using std::chrono::milliseconds;

ApiError no_memory() {
    ApiError error(503, "other requests need the memory at present - try again later", "", "out_of_memory");
    error.retry_after = 1;
    return error;
}

size_t workers(const ServerOptions& options) {
    return static_cast<size_t>(
        std::clamp<int64_t>(options.models * (options.slots + options.queue) + 16, 17, 1024));
}

Service::Service(Models& the_models, const ServerOptions& given)
    : models(the_models),
      options(given),
      keys(given.api_keys),
      memory_(allowed_memory(given.most_memory, workers(given))) {}

double Service::uptime_seconds() const {
    return std::chrono::duration<double>(Clock::now() - started_).count();
}

Service::Clock::time_point Service::deadline() const {
    return HttpServer::exchange().start + std::min<milliseconds>(options.timeout, std::chrono::years(10));
}

void Service::check_running() const {
    if (HttpServer::client_gone()) throw ApiError(kClientGone, "the client left");
    if (Clock::now() >= deadline()) throw timeout_error();
}

void Service::check() const {
    check_running();
    if (stopping) throw shutting_down();
}

std::shared_ptr<ServedModel> Service::model(const std::string& name) {
    return models.find(name, [this] { check(); });
}

Service::Reserved Service::reserve(const std::string& body) {
    check();
    const BodyCost cost = count_body(body);
    if (cost.to_read() > memory_.bytes())
        throw ApiError(413, "this server has too little memory for the request", "", "out_of_memory");
    auto lease = memory_.take(cost.to_read());
    if (!lease) throw no_memory();
    HttpServer::exchange().holds = lease;
    HttpServer::exchange().memory = cost.to_read();
    return {std::move(lease), cost.to_keep()};
}

std::shared_ptr<MemoryBudget::Lease> Service::hold(size_t bytes, size_t held) {
    if (held + bytes > memory_.bytes())
        throw ApiError(
            413,
            "the answer needs more memory than this server has for it - ask for fewer choices, tokens "
            "or log probabilities, or for a stream",
            "", "out_of_memory");
    auto lease = memory_.take(bytes);
    if (!lease) throw no_memory();
    return lease;
}

}  // namespace refold
