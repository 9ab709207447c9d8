// Training data: text tokenized once into a memory-mapped file, packed into sequences of one length, and
// visited in an order that a seed determines.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "train/records.h"

namespace refold {

struct TrainDataOptions {
    // Plain text (one document per file), or .json and .jsonl: {"text"}, Alpaca {"instruction", "input",
    // "output"}, ShareGPT {"conversations": [{"from", "value"}]}, OpenAI {"messages": [{"role", "content"}]}.
    std::vector<std::string> files;
    int64_t context = 512;
    bool responses_only = true;  // score only the responses of dialogues and instructions
    double held_out = 0.02;      // fraction of the sequences, spread over the text, at least one; 0: none
    std::string folder;          // of the token file; created if needed
};

class TrainData {
public:
    // Concatenates all documents and cuts them into sequences. Each sequence begins with the last token of
    // the previous one; sequences without a scored token are dropped. Reuses an earlier token file of the
    // same text and tokenizer. Of several processes on one machine one writes the file and the others wait.
    // Throws Error(usage) for options out of range, Error(io) for a missing file, Error(input) naming file
    // and line for malformed records and for text of fewer than two sequences, and as tokenize().
    static TrainData open(const TrainDataOptions& options, const TrainTokenizer& tokenizer);

    // Sequences that have been cut already, at least one to train on, all of the same length >= 2; every
    // token but the first is scored. `identity` is that of the text.
    static TrainData of(const std::vector<std::vector<int32_t>>& fit,
                        const std::vector<std::vector<int32_t>>& held_out, std::string identity);

    // context + 1 tokens; every token but the first is predicted from the tokens before it. `scored` has the
    // same length.
    struct Sequence {
        std::span<const int32_t> tokens;
        std::span<const uint8_t> scored;
    };
    int64_t context() const { return context_; }
    int64_t size() const { return static_cast<int64_t>(fit_.size()); }
    Sequence operator[](int64_t index) const { return sequence(fit_.at(static_cast<size_t>(index))); }
    int64_t held_out_size() const { return static_cast<int64_t>(held_out_.size()); }
    Sequence held_out(int64_t index) const { return sequence(held_out_.at(static_cast<size_t>(index))); }
    // Of the whole text, including dropped sequences.
    int64_t tokens() const { return static_cast<int64_t>(tokens_.size()); }
    int64_t scored_tokens() const { return scored_; }
    int64_t documents() const { return documents_; }
    // SHA-256 of text, tokenizer and options. A checkpoint belongs to one identity.
    const std::string& identity() const { return identity_; }

private:
    void divide(const TrainDataOptions& options);
    Sequence sequence(int64_t number) const;

    std::shared_ptr<const void> owner_;  // of the tokens: a file, or memory
    std::span<const int32_t> tokens_;
    std::span<const uint8_t> is_scored_;
    int64_t context_ = 0, scored_ = 0, documents_ = 0;
    int64_t distance_ = 0;                 // from the first token of a sequence to that of the next
    std::vector<int64_t> fit_, held_out_;  // numbers of sequences
    std::string identity_;
};

// The order of sequences: one permutation per epoch. The n-th sequence of a run depends only on the seed and
// n, so a checkpoint needs only n.
class SequenceOrder {
public:
    SequenceOrder(int64_t size, uint64_t seed) : size_(size), seed_(seed) {}
    // The n-th sequence, n = 0, 1, ...; n / size is the epoch.
    int64_t operator()(int64_t n);

private:
    int64_t size_;
    uint64_t seed_;
    int64_t epoch_ = -1;
    std::vector<int64_t> order_;
};

}  // namespace refold
