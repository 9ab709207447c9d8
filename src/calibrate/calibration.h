// Text whose activations methods look at, as tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace refold {

struct CalibrationOptions {
    int64_t tokens = 32768;  // of all texts together, from their beginnings
    int64_t length = 1024;   // tokens of a sequence; attention sees one sequence
};

struct CalibrationText {
    std::string name;  // of its file, without the folder
    std::string_view text;
    std::span<const int32_t> tokens;
};

struct Calibration {
    struct Text {
        std::string name, hash;  // SHA-256
    };
    std::vector<Text> texts;
    std::string hash;  // the text's; of several, SHA-256 of theirs
    CalibrationOptions options;
    std::vector<std::vector<int32_t>> fit;  // what is solved with
    std::vector<std::vector<int32_t>>
        held_out;  // every eighth sequence, at least one: what ridges are chosen on

    std::string name() const;  // "a.txt, b.txt"
    int64_t fit_tokens() const { return static_cast<int64_t>(fit.size()) * options.length; }
};

// Cuts the tokens of texts into whole sequences and takes them in turn, so that every kind of text has its
// part of what is solved with and of what is held out. Throws Error(usage) for options out of range and no
// text, Error(input) for fewer than two sequences, saying how many tokens there are; texts shorter than
// options.tokens are used whole, which the caller can see from the number of sequences.
Calibration make_calibration(std::span<const CalibrationText> texts, const CalibrationOptions& options);
// The same of one text.
Calibration make_calibration(const std::string& name, std::string_view text, std::span<const int32_t> tokens,
                             const CalibrationOptions& options);

// The sequences of this process of group(): `fit` of them to fit with, then the held out.
struct OwnSequences {
    std::vector<std::vector<int32_t>> tokens;
    size_t fit = 0;
};
OwnSequences own_sequences(const Calibration& calibration);

}  // namespace refold
