// The server's counters in Prometheus' text format (0.0.4).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "serve/status.h"

namespace refold {

class HttpCounts {
public:
    // `endpoint` must be a route, not text from a client.
    void add(const char* endpoint, int status, double seconds);

    struct Snapshot {
        std::map<std::pair<std::string, int>, uint64_t> requests;  // by endpoint and status
        double seconds = 0;                                        // of all requests together
    };
    Snapshot snapshot() const;

private:
    mutable std::mutex mutex_;
    Snapshot counts_;
};

struct ServerStatus {
    SchedulerStatus scheduler;
    HttpCounts::Snapshot http;
    int64_t connections = 0;
    double uptime_seconds = 0;
    uint64_t resident_bytes = 0;
    std::string version, model;
};

std::string prometheus_text(const ServerStatus& status);

const char* finish_reason_name(FinishReason reason);

}  // namespace refold
