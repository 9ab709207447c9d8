// The server's counters in Prometheus' text format (0.0.4).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "serve/key_holder.h"
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

// Of one model.
struct ModelStatus {
    std::string name;
    uint64_t memory_bytes = 0;  // 0 while it is not loaded
    uint64_t loads = 0;
    std::optional<SchedulerStatus> scheduler;  // of a model that is loaded and generates
};

struct NamedEncoderStatus {
    std::string name;
    EncoderStatus encoder;
};

struct KeyStatus {
    std::string name;  // of the keys' holder
    KeyHolder::Counts counts;
};

struct ServerStatus {
    std::vector<ModelStatus> models;  // that generate
    std::vector<NamedEncoderStatus> encoders;
    std::vector<KeyStatus> keys;
    HttpCounts::Snapshot http;
    int64_t connections = 0;
    double uptime_seconds = 0;
    uint64_t resident_bytes = 0;
    std::string version;
};

// A scheduler's counts start at 0 when its model is loaded.
std::string prometheus_text(const ServerStatus& status);

const char* finish_reason_name(FinishReason reason);

}  // namespace refold
