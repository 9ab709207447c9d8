#include "calibrate/calibration.h"

#include <algorithm>

#include "core/error.h"
#include "core/sha256.h"

namespace refold {

Calibration make_calibration(const std::string& name, std::string_view text, std::span<const int32_t> tokens,
                             const CalibrationOptions& options) {
    constexpr size_t kHeldOut = 8;
    if (options.length < 2 || options.tokens / 2 < options.length)
        fail(ErrorCode::usage, "calibration",
             "{} tokens in sequences of {}: at least two sequences of two tokens are needed", options.tokens,
             options.length);
    const auto length = static_cast<size_t>(options.length);
    const size_t wanted = static_cast<size_t>(options.tokens) / length;
    const size_t count = std::min(wanted, tokens.size() / length);
    if (count < 2)
        fail(ErrorCode::input, "calibration",
             "'{}' has {} tokens: too little for two sequences of {} - give a longer text", name,
             tokens.size(), length);
    Sha256 hash;
    hash.update(std::as_bytes(std::span(text)));
    Calibration out{name, hash.hex(), options, {}, {}};
    for (size_t s = 0; s < count; ++s) {
        const auto part = tokens.subspan(s * length, length);
        const bool held_out = s % kHeldOut == std::min(kHeldOut, count) - 1;
        (held_out ? out.held_out : out.fit).emplace_back(part.begin(), part.end());
    }
    return out;
}

}  // namespace refold
