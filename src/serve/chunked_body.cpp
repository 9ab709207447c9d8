#include "serve/chunked_body.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

namespace refold {
namespace {

constexpr size_t kLongestLine = 256, kMostTrailers = 8 << 10, kMostFraming = 64 << 10;

}  // namespace

// Reads one line of framing at `from`.
ChunkedBody::State ChunkedBody::advance(const std::string& text, size_t& from, size_t most) {
    const size_t longest = part_ == Part::trailers ? kMostTrailers : kLongestLine;
    const std::string_view rest = std::string_view(text).substr(from, longest);
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos) return rest.size() < longest ? State::incomplete : State::malformed;
    // Programs disagree about line ends without a carriage return.
    if (end == 0 || rest[end - 1] != '\r') return State::malformed;
    const std::string_view line = rest.substr(0, end - 1);
    from += end + 1;
    framing_ += end + 1;
    if (framing_ > kMostFraming + 2 * size_) return State::malformed;
    if (part_ == Part::trailers) {
        trailers_ += end + 1;
        if (trailers_ > kMostTrailers) return State::malformed;
        return line.empty() ? State::complete : State::incomplete;
    }
    if (part_ == Part::data_end) {
        part_ = Part::size;
        return line.empty() ? State::incomplete : State::malformed;
    }
    const auto [last, error] = std::from_chars(line.data(), line.data() + line.size(), left_, 16);
    const std::string_view extension(last, static_cast<size_t>(line.data() + line.size() - last));
    if (error == std::errc::result_out_of_range) return State::too_large;
    if (error != std::errc() || !(extension.empty() || extension.front() == ';')) return State::malformed;
    if (left_ > most - size_) return State::too_large;
    part_ = left_ == 0 ? Part::trailers : Part::data;
    return State::incomplete;
}

ChunkedBody::State ChunkedBody::decode(std::string& text, size_t begin, size_t most) {
    const size_t start = begin + size_;
    size_t from = start;
    State state = State::incomplete;
    while (state == State::incomplete) {
        if (part_ == Part::data) {
            const size_t count = std::min(left_, text.size() - from);
            std::memmove(text.data() + begin + size_, text.data() + from, count);
            from += count;
            size_ += count;
            left_ -= count;
            if (left_ > 0) break;
            part_ = Part::data_end;
        }
        const size_t before = from;
        state = advance(text, from, most);
        if (from == before) break;
    }
    text.erase(begin + size_, from - (begin + size_));
    return state;
}

}  // namespace refold
