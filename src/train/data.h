// Text to train on: tokenised once into a memory-mapped file, packed into sequences of one length, in an
// order that a seed decides.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "train/records.h"

namespace refold {

class TokenFile;

struct TrainDataOptions {
    // Plain text (one document a file), or .json and .jsonl: {"text"}, Alpaca {"instruction", "input",
    // "output"}, ShareGPT {"conversations": [{"from", "value"}]}, OpenAI {"messages": [{"role", "content"}]}.
    std::vector<std::string> files;
    int64_t context = 512;
    bool responses_only = true;  // of dialogues and instructions
    double held_out = 0.02;      // part of the sequences, spread over the text, at least one; 0: none
    std::string folder;          // where the token file lies; made if it is not there
};

class TrainData {
public:
    // Packs all documents one behind the other and cuts them into sequences, each beginning with the last
    // token of the one before it; those without a scored token are left out. Reads an earlier token file of
    // the same text and tokenizer; of several processes on one machine one writes it and the others wait.
    // Throws Error(usage) for options out of range, Error(io) for a missing file, Error(input) naming file
    // and line for records that are malformed, and for text that gives fewer than two sequences; and as
    // tokenise().
    static TrainData open(const TrainDataOptions& options, const TrainTokenizer& tokenizer);

    // context + 1 tokens: every one but the first is predicted from those before it. `scored` is as long.
    struct Sequence {
        std::span<const int32_t> tokens;
        std::span<const uint8_t> scored;
    };
    int64_t context() const { return context_; }
    int64_t size() const { return static_cast<int64_t>(fit_.size()); }
    Sequence operator[](int64_t index) const { return sequence(fit_.at(static_cast<size_t>(index))); }
    int64_t held_out_size() const { return static_cast<int64_t>(held_out_.size()); }
    Sequence held_out(int64_t index) const { return sequence(held_out_.at(static_cast<size_t>(index))); }
    // In the whole text, sequences that are left out included.
    int64_t tokens() const;
    int64_t scored_tokens() const { return scored_; }
    int64_t documents() const;
    // SHA-256 of text, tokenizer and options: what a checkpoint belongs to.
    const std::string& identity() const { return identity_; }

private:
    void divide(const TrainDataOptions& options);
    Sequence sequence(int64_t number) const;

    std::shared_ptr<const TokenFile> file_;
    int64_t context_ = 0, scored_ = 0;
    std::vector<int64_t> fit_, held_out_;  // numbers of sequences in the file
    std::string identity_;
};

// The order of sequences: a permutation of each epoch. What one number of a run's n-th sequence is depends on
// the seed and n alone, so a position is all that a checkpoint must keep.
class SequenceOrder {
public:
    SequenceOrder(int64_t size, uint64_t seed) : size_(size), seed_(seed) {}
    // n = 0, 1, ...; n / size is the epoch.
    int64_t operator()(int64_t n);

private:
    int64_t size_;
    uint64_t seed_;
    int64_t epoch_ = -1;
    std::vector<int64_t> order_;
};

}  // namespace refold
