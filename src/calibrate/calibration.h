// Calibration text: tokens on which methods measure activations.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace refold {

struct CalibrationOptions {
    int64_t tokens = 32768;  // of all texts together, from the beginning of each
    int64_t length = 1024;   // tokens per sequence; sequences do not attend to each other
};

struct CalibrationText {
    std::string name;  // file name without the folder
    std::string_view text;
    std::span<const int32_t> tokens;
};

struct Calibration {
    struct Text {
        std::string name, hash;  // SHA-256
    };
    std::vector<Text> texts;
    std::string hash;  // of a single text its hash, of several the SHA-256 of their hashes
    CalibrationOptions options;
    std::vector<std::vector<int32_t>> fit;       // sequences to fit with
    std::vector<std::vector<int32_t>> held_out;  // every eighth sequence, at least one: to choose ridges on

    // How often each token occurs in the whole texts, beyond options.tokens too; ids past the end: never.
    std::vector<int64_t> occurrences;

    std::string name() const;  // "a.txt, b.txt"
    int64_t fit_tokens() const { return static_cast<int64_t>(fit.size()) * options.length; }
};

// Cuts the tokens of texts into whole sequences and takes one of each text in turn, so that every text
// contributes to both the fitted and the held-out sequences. If the texts have fewer than options.tokens
// tokens, uses all of them. Throws Error(usage) for options out of range and for no text, Error(input) naming
// the number of tokens for fewer than two sequences.
Calibration make_calibration(std::span<const CalibrationText> texts, const CalibrationOptions& options);
// The same for one text.
Calibration make_calibration(const std::string& name, std::string_view text, std::span<const int32_t> tokens,
                             const CalibrationOptions& options);

// Fewer of the sequences to fit with, as many as `tokens` are of options.tokens; the first ones have some of
// each text.
Calibration first_tokens(const Calibration& all, int64_t tokens);
// So many of them that matrices with the inputs of a residual stream can be compared, and the head's be
// rounded: four for each feature, and at least 8192.
Calibration first_tokens_for(const Calibration& all, int64_t features);

// The sequences that this process of group() works on: first `fit` sequences to fit with, then held-out ones.
struct OwnSequences {
    std::vector<std::vector<int32_t>> tokens;
    size_t fit = 0;
};
OwnSequences own_sequences(const Calibration& calibration);

}  // namespace refold
