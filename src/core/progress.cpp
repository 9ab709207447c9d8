#include "core/progress.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <set>

#include "core/error.h"
#include "core/group.h"
#include "core/interrupt.h"
#include "core/progress_observer.h"
#include "core/text.h"

namespace refold {

static ProgressStyle g_style = ProgressStyle::automatic;

static thread_local const ProgressObserver* t_observer = nullptr;

ProgressObserver::ProgressObserver(std::function<bool(const ProgressUpdate&)> observe)
    : observe_(std::move(observe)) {
    t_observer = this;
}
ProgressObserver::~ProgressObserver() { t_observer = nullptr; }
const ProgressObserver* ProgressObserver::current() { return t_observer; }
void ProgressObserver::update(const ProgressUpdate& update) const {
    if (!observe_(update)) fail(ErrorCode::interrupted, "progress", "{}: cancelled", update.label);
}

void set_progress_style(ProgressStyle style) { g_style = style; }

void remark(const std::string& text) {
    static std::mutex mutex;
    static std::set<std::string> said;
    if (g_style != ProgressStyle::automatic || !group().first() || t_observer != nullptr) return;
    const std::lock_guard lock(mutex);
    if (!said.insert(text).second) return;
    // A server that nobody listens to must not wait for it.
    pollfd out{STDERR_FILENO, POLLOUT, 0};
    if (poll(&out, 1, 0) == 1 && (out.revents & POLLOUT) != 0) fputs((text + "\n").c_str(), stderr);
}

Progress::Progress(std::string label, uint64_t total, std::string unit)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      start_(std::chrono::steady_clock::now()),
      drawn_(start_),
      terminal_(isatty(STDERR_FILENO) != 0),
      active_(g_style == ProgressStyle::automatic && group().first() && t_observer == nullptr) {}

Progress::~Progress() {
    if (active_ && terminal_ && shown_) fputs("\n", stderr);
}

void Progress::advance(uint64_t by, const std::string& note) {
    check_interrupt();
    done_ += by;
    note_ = note;
    if (t_observer != nullptr) t_observer->update({label_, done_, total_, unit_});
    const auto now = std::chrono::steady_clock::now();
    const auto interval = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(5000);
    if (!active_ || now - drawn_ < interval) return;
    drawn_ = now;
    draw(false);
}

void Progress::finish(const std::string& note) {
    if (!active_) return;
    note_ = note;
    draw(true);
    active_ = false;
}

void Progress::draw(bool last) {
    const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    std::string line = label_ + ": ";
    if (total_ > 0 && !last) {
        const double part = static_cast<double>(done_) / static_cast<double>(total_);
        line +=
            fmt::format("{:3.0f} %  {}/{} {}", 100 * part, format_count(done_), format_count(total_), unit_);
        if (done_ > 0) line += fmt::format("  ETA {}", format_seconds(elapsed / part - elapsed));
    } else {
        line += fmt::format("{} {} in {}", format_count(done_), unit_, format_seconds(elapsed));
    }
    if (!note_.empty()) line += "  " + note_;
    // fmt::print would throw when stderr is closed.
    fputs(fmt::format("{}{}{}", terminal_ ? "\r\033[K" : "", line, terminal_ && !last ? "" : "\n").c_str(),
          stderr);
    shown_ = !last;
}

}  // namespace refold
