// Prompts that wait for a sequence. Tokens that several prompts begin with are computed once.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "generation/shared_sequences.h"

namespace refold {

class PromptQueue {
public:
    using Tokens = std::span<const int32_t>;

    // Indices of prompts in an order in which neighbors have the longest common beginnings.
    static std::vector<size_t> order(const std::vector<Tokens>& prompts);

    // `prompts`: at least one token each, in this order(). `rooms` [prompts]: tokens of each one's sequence.
    // The prompts and `sequences` outlive it.
    PromptQueue(SharedSequences& sequences, std::vector<Tokens> prompts, std::vector<size_t> rooms);

    struct Admitted {
        size_t prompt = 0;
        SharedSequences::Sequence* sequence = nullptr;
    };
    // Begins a step: the prompts that could not start in the last one are looked at again.
    void begin_step();
    // The next prompt that can start, with its sequence. A prompt waits while the one before it computes what
    // both begin with. Nothing when none can start in this step.
    std::optional<Admitted> next();
    // The engine has all tokens of the prompt.
    void read(size_t prompt) { read_[prompt] = true; }

    bool empty() const { return waiting_.empty(); }

private:
    SharedSequences& sequences_;
    std::vector<Tokens> prompts_;
    std::vector<size_t> rooms_;
    std::vector<size_t> shared_;  // tokens that a prompt has in common with the one before
    std::vector<bool> read_;
    std::list<size_t> waiting_;
    std::list<size_t>::iterator next_ = waiting_.end();
    size_t looked_ = 0;
};

}  // namespace refold
