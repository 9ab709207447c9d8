#include "generation/utf8_stream.h"

#include "core/text.h"

namespace refold {
namespace {

// `bytes` may be the beginning of one UTF-8 character.
bool is_unfinished(std::string_view bytes) {
    const auto lead = static_cast<unsigned char>(bytes[0]);
    const size_t length = lead >= 0xF0 && lead < 0xF5   ? 4
                          : lead >= 0xE0 && lead < 0xF0 ? 3
                          : lead >= 0xC2 && lead < 0xE0 ? 2
                                                        : 1;
    if (bytes.size() >= length) return false;
    // Continuation bytes as far as they are there: those that only too long forms, surrogates or characters
    // beyond U+10FFFF have are none.
    std::string whole(bytes);
    const char filling = lead == 0xE0 ? '\xA0' : lead == 0xF0 ? '\x90' : '\x80';
    whole.resize(length, bytes.size() == 1 ? filling : '\x80');
    return find_invalid_utf8(whole) == std::string::npos;
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
    pending_ += bytes;
    return drain(false);
}

std::string Utf8Stream::finish() { return drain(true); }

std::string Utf8Stream::drain(bool last) {
    std::string out;
    for (;;) {
        const size_t invalid = find_invalid_utf8(pending_);
        out += pending_.substr(0, invalid);
        pending_.erase(0, invalid);
        if (pending_.empty()) return out;
        if (is_unfinished(pending_)) {
            if (last) pending_.clear();
            return out;
        }
        out += "\xEF\xBF\xBD";
        pending_.erase(0, 1);
    }
}

}  // namespace refold
