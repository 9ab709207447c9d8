#include "generation/text_stream.h"

#include <algorithm>

namespace refold {
namespace {

// Length of the longest end of `text` that `stop` begins with, short of all of `stop`.
size_t begun(std::string_view text, std::string_view stop) {
    size_t length = std::min(text.size(), stop.size() - 1);
    while (length > 0 && text.substr(text.size() - length) != stop.substr(0, length)) --length;
    return length;
}

}  // namespace

TextStream::TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {
    std::erase(stops_, std::string());
}

std::string TextStream::push(std::string_view bytes) {
    if (stopped()) return {};
    held_ += utf8_.push(bytes);
    return release(false);
}

std::string TextStream::finish() {
    if (stopped()) return {};
    held_ += utf8_.finish();
    return release(true);
}

std::string TextStream::release(bool all) {
    size_t end = std::string::npos, hold = 0;
    for (const std::string& stop : stops_) {
        hold = std::max(hold, begun(held_, stop));
        const size_t found = held_.find(stop);
        if (found >= end) continue;
        end = found;
        stop_ = stop;
    }
    if (!stopped()) end = all ? held_.size() : held_.size() - hold;
    std::string out = held_.substr(0, end);
    held_.erase(0, stopped() ? std::string::npos : end);
    return out;
}

std::string before_stops(std::string text, const std::vector<std::string>& stops) {
    for (const std::string& stop : stops)
        if (!stop.empty()) text.resize(std::min(text.size(), text.find(stop)));
    return text;
}

}  // namespace refold
