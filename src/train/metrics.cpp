#include "train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/json_lines.h"
#include "train/event_file.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kMetrics = "metrics";

// An append-only file. The operating system has the data when append() returns.
class GrowingFile {
public:
    explicit GrowingFile(std::string path)
        : path_(std::move(path)),
          descriptor_(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644)) {
        if (descriptor_ < 0) fail(ErrorCode::io, kMetrics, "cannot write '{}': {}", path_, strerror(errno));
    }
    ~GrowingFile() { close(descriptor_); }
    GrowingFile(const GrowingFile&) = delete;
    GrowingFile& operator=(const GrowingFile&) = delete;

    void append(std::string_view text) const {
        while (!text.empty()) {
            const ssize_t written = ::write(descriptor_, text.data(), text.size());
            if (written < 0 && errno == EINTR) continue;
            if (written < 0) fail(ErrorCode::io, kMetrics, "cannot write '{}': {}", path_, strerror(errno));
            text.remove_prefix(static_cast<size_t>(written));
        }
    }

private:
    std::string path_;
    int descriptor_;
};

std::string contents(const std::string& path) {
    if (!std::filesystem::exists(path)) return "";
    const MappedFile file(path);
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Leaves an unchanged file alone, because TensorBoard may be reading it.
void replace(const std::string& path, const std::string& before, const std::string& now) {
    if (now != before) write_file(path, now);
}

std::string kept_lines(const std::string& text, const std::string& path, int64_t first_step) {
    std::string out;
    for (size_t begin = 0, number = 1, end = 0; begin < text.size(); begin = end + 1, ++number) {
        end = text.find('\n', begin);
        if (end == std::string::npos) break;  // the run was killed while writing
        const std::string_view line = std::string_view(text).substr(begin, end + 1 - begin);
        const Json object = parse_json_line(line, kMetrics, path, number);
        const auto step = object.find("step");
        if (step == object.end() || !step->is_number_integer())
            fail(ErrorCode::input, kMetrics,
                 "'{}', line {}: no 'step' - remove the file, or train in another folder", path, number);
        if (step->get<int64_t>() <= first_step) out += line;
    }
    return out;
}

std::string kept_events(std::string_view text, int64_t first_step) {
    std::string out;
    while (const auto record = first_event(text)) {
        if (record->step <= first_step) out += text.substr(0, record->size);
        text.remove_prefix(record->size);
    }
    return out;
}

double now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct MetricsFiles::Files {
    GrowingFile lines, events;
};

MetricsFiles::MetricsFiles(const std::string& folder, int64_t first_step) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) fail(ErrorCode::io, kMetrics, "cannot make folder '{}': {}", folder, error.message());
    const std::string lines = folder + "/metrics.jsonl", events = folder + "/events.out.tfevents.refold";
    const std::string old_lines = contents(lines), old_events = contents(events);
    // A run makes the events first: lines alone are those of another program.
    if (first_step == 0 && !old_lines.empty() && old_events.empty())
        fail(ErrorCode::usage, kMetrics,
             "'{}' is there, but no '{}' beside it: refold has not written it - move it away, or choose "
             "another output",
             lines, events);
    replace(lines, old_lines, first_step == 0 ? "" : kept_lines(old_lines, lines, first_step));
    std::string kept = first_step == 0 ? "" : kept_events(old_events, first_step);
    if (kept.empty()) kept = event_file_begin(now());
    replace(events, old_events, kept);
    files_.reset(new Files{GrowingFile(lines), GrowingFile(events)});
}

MetricsFiles::~MetricsFiles() = default;

void MetricsFiles::write(const StepMetrics& metrics) {
    Json line{{"step", metrics.step}};
    for (const auto& [name, value] : metrics.values) line[name] = value;
    files_->lines.append(line.dump() + "\n");
    files_->events.append(scalar_event(now(), metrics.step, metrics.values));
}

}  // namespace refold
