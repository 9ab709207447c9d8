// Progress with ETA on stderr for everything that takes longer than a moment.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace refold {

enum class ProgressStyle { automatic, none };
// Applies to the whole process; `none` is --quiet.
void set_progress_style(ProgressStyle style);

// Says something that users should know of what is being done, where progress would be shown; each text once.
// Any thread; never waits.
void remark(const std::string& text);

// On a terminal one line that is redrawn, on a pipe a new line every few seconds. Not thread-safe.
class Progress {
public:
    // `total` in `unit`s ("tokens", "tensors", ...); 0 when unknown.
    Progress(std::string label, uint64_t total, std::string unit);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    // `note` follows the figures (a running perplexity, a tensor's name).
    void advance(uint64_t by, const std::string& note = "");
    void finish(const std::string& note = "");

private:
    void draw(bool last);
    std::string label_, unit_, note_;
    uint64_t total_, done_ = 0;
    std::chrono::steady_clock::time_point start_, drawn_;
    bool terminal_, active_, shown_ = false;
};

}  // namespace refold
