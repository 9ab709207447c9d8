#include "calibrate/calibration.h"

#include <algorithm>

#include "core/error.h"
#include "core/group.h"
#include "core/sha256.h"

namespace refold {
namespace {

constexpr size_t kHeldOut = 8;

std::string sha256(std::string_view text) {
    Sha256 hash;
    hash.update(std::as_bytes(std::span(text)));
    return hash.hex();
}

}  // namespace

std::string Calibration::name() const {
    std::string names;
    for (const Text& text : texts) names += (names.empty() ? "" : ", ") + text.name;
    return names;
}

Calibration make_calibration(std::span<const CalibrationText> texts, const CalibrationOptions& options) {
    if (texts.empty()) fail(ErrorCode::usage, "calibration", "no text");
    if (options.length < 2 || options.tokens / 2 < options.length)
        fail(ErrorCode::usage, "calibration",
             "{} tokens in sequences of {}: at least two sequences of two tokens are needed", options.tokens,
             options.length);
    const auto length = static_cast<size_t>(options.length);
    const size_t wanted = static_cast<size_t>(options.tokens) / length;
    size_t available = 0, most = 0, tokens = 0;
    std::string hashes;
    Calibration out;
    out.options = options;
    for (const CalibrationText& t : texts) {
        const size_t sequences = t.tokens.size() / length;
        available += sequences;
        most = std::max(most, sequences);
        tokens += t.tokens.size();
        out.texts.push_back({t.name, sha256(t.text)});
        hashes += out.texts.back().hash;
        for (const int32_t token : t.tokens) {
            const auto id = static_cast<size_t>(token);
            if (id >= out.occurrences.size()) out.occurrences.resize(id + 1);
            ++out.occurrences[id];
        }
    }
    out.hash = texts.size() == 1 ? hashes : sha256(hashes);
    if (available < 2)
        fail(ErrorCode::input, "calibration",
             "'{}' has {} tokens: too little for two sequences of {} - give a longer text", out.name(),
             tokens, length);
    size_t left = std::min(wanted, available);
    for (size_t round = 0; round < most; ++round) {
        for (size_t t = 0; t < texts.size() && left > 0; ++t) {
            if ((round + 1) * length > texts[t].tokens.size()) continue;
            const auto part = texts[t].tokens.subspan(round * length, length);
            --left;
            // Each text is held out in another round, so that all texts are held out early.
            const bool held_out =
                (round + t) % kHeldOut == kHeldOut - 1 || (left == 0 && out.held_out.empty());
            (held_out ? out.held_out : out.fit).emplace_back(part.begin(), part.end());
        }
    }
    return out;
}

Calibration make_calibration(const std::string& name, std::string_view text, std::span<const int32_t> tokens,
                             const CalibrationOptions& options) {
    const CalibrationText one{name, text, tokens};
    return make_calibration({&one, 1}, options);
}

Calibration first_tokens(const Calibration& all, int64_t tokens) {
    Calibration out = all;
    if (tokens >= all.options.tokens) return out;
    out.options.tokens = tokens;
    out.fit.resize(std::max<size_t>(
        1, all.fit.size() * static_cast<size_t>(tokens) / static_cast<size_t>(all.options.tokens)));
    return out;
}

Calibration first_tokens_for(const Calibration& all, int64_t features) {
    return first_tokens(all, std::max(int64_t{8192}, 4 * features));
}

OwnSequences own_sequences(const Calibration& calibration) {
    OwnSequences own{group().own(calibration.fit), 0};
    own.fit = own.tokens.size();
    for (auto& sequence : group().own(calibration.held_out)) own.tokens.push_back(std::move(sequence));
    return own;
}

}  // namespace refold
