// Reads prompts through a batch engine, pieces of many in one step; what several begin with is read once.
#pragma once

#include <functional>
#include <list>
#include <span>
#include <vector>

#include "tasks/shared_sequences.h"

namespace refold {

class PromptReader {
public:
    using Tokens = std::span<const int32_t>;

    // Indices of prompts in an order in which neighbours have the longest common beginnings.
    static std::vector<size_t> order(const std::vector<Tokens>& prompts);

    // At least one token each, in this order(); they outlive it. `room`: tokens that may follow each.
    PromptReader(BatchEngine& engine, std::vector<Tokens> prompts, size_t room);

    // Tokens of a prompt in one step.
    struct Part {
        size_t prompt = 0;
        SharedSequences::Sequence* sequence = nullptr;
        size_t first = 0, last = 0;
        bool ends = false;  // the prompt
    };
    struct Limits {
        size_t logits;     // rows whose logits are asked for
        size_t sequences;  // that are read at a time
    };
    // Adds rows of prompts to a step. `asks` is called once for every token, in their order.
    using Asks = std::function<bool(size_t prompt, size_t token)>;
    std::vector<Part> fill(std::vector<BatchRow>& rows, const Limits& limits, const Asks& asks);
    // After the step. Prompts that end leave the reader: their sequences are the caller's to go on with, and
    // to end().
    void advance(std::span<const Part> parts);
    void end(SharedSequences::Sequence& sequence) { sequences_.end(sequence); }

    bool done() const { return waiting_.empty() && reading_.empty(); }

private:
    struct Reading {
        size_t prompt;
        SharedSequences::Sequence* sequence;
    };
    bool add(const Reading& reading, const Limits& limits, const Asks& asks, std::vector<BatchRow>& rows,
             std::vector<Part>& parts);

    BatchEngine& engine_;
    std::vector<Tokens> prompts_;
    size_t room_;
    std::vector<size_t> shared_;  // tokens that a prompt has in common with the one before
    std::vector<bool> read_;
    SharedSequences sequences_;
    std::list<Reading> reading_;
    std::list<size_t> waiting_;
    size_t asked_ = 0;  // logits of the step
};

}  // namespace refold
