#include "io/ggml_log.h"

#include <ggml.h>

#include <deque>
#include <mutex>
#include <vector>

#include "core/text.h"

namespace refold {
namespace {

constexpr size_t kKeptLines = 8;

struct ErrorRing {
    std::mutex mutex;
    std::deque<std::string> lines;
    bool continued = false;  // the next GGML_LOG_LEVEL_CONT belongs to lines.back()
};

// Never destroyed, because ggml's threads may log while the process ends.
ErrorRing& ring() {
    static auto* const instance = new ErrorRing;
    return *instance;
}

// Called from C, so it must not throw.
void keep_errors(ggml_log_level level, const char* text, void*) noexcept {
    try {
        ErrorRing& r = ring();
        const std::lock_guard lock(r.mutex);
        if (level == GGML_LOG_LEVEL_CONT) {
            if (r.continued && !r.lines.empty()) r.lines.back() += text;
            return;
        }
        r.continued = level == GGML_LOG_LEVEL_ERROR;
        if (!r.continued) return;
        r.lines.emplace_back(text);
        if (r.lines.size() > kKeptLines) r.lines.pop_front();
    } catch (...) {
    }
}

}  // namespace

void capture_ggml_log() {
    static std::once_flag once;
    std::call_once(once, [] { ggml_log_set(keep_errors, nullptr); });
}

void clear_ggml_errors() {
    ErrorRing& r = ring();
    const std::lock_guard lock(r.mutex);
    r.lines.clear();
    r.continued = false;
}

std::string ggml_errors() {
    ErrorRing& r = ring();
    const std::lock_guard lock(r.mutex);
    std::vector<std::string> lines;
    for (std::string line : r.lines) {
        while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
        if (!line.empty()) lines.push_back(std::move(line));
    }
    return lines.empty() ? kNoReason : join(lines, "; ");
}

}  // namespace refold
