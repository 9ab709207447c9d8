// Text whose activations methods look at, as tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace refold {

struct CalibrationOptions {
    int64_t tokens = 32768;  // taken from the beginning of the text
    int64_t length = 1024;   // tokens of a sequence; attention sees one sequence
};

struct Calibration {
    std::string name;  // of the text's file, without its folder
    std::string hash;  // SHA-256 of the text
    CalibrationOptions options;
    std::vector<std::vector<int32_t>> fit;  // what is solved with
    std::vector<std::vector<int32_t>>
        held_out;  // every eighth sequence, at least one: what ridges are chosen on

    int64_t fit_tokens() const { return static_cast<int64_t>(fit.size()) * options.length; }
};

// Cuts the tokens of a text into whole sequences. Throws Error(usage) for options out of range, Error(input)
// for a text of fewer than two sequences, saying how many tokens it has; a text shorter than options.tokens
// is used whole, which the caller can see from the number of sequences.
Calibration make_calibration(const std::string& name, std::string_view text, std::span<const int32_t> tokens,
                             const CalibrationOptions& options);

}  // namespace refold
