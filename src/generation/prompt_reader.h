// Reads prompts through an engine, pieces of many in one step, without continuing them.
#pragma once

#include <functional>
#include <list>
#include <span>
#include <vector>

#include "generation/prompt_queue.h"

namespace refold {

class PromptReader {
public:
    using Tokens = PromptQueue::Tokens;

    // `prompts`: at least one token each, in PromptQueue::order(); they outlive it.
    PromptReader(Engine& engine, const std::vector<Tokens>& prompts);

    // Tokens of one prompt in a step.
    struct TokenRange {
        size_t prompt = 0;
        SharedSequences::Sequence* sequence = nullptr;
        size_t first = 0, last = 0;
        bool ends = false;  // the prompt
    };
    // Adds rows of prompts to a step, at most `logits` of which ask for logits. `asks` is called once for
    // every token, in the order of the rows.
    using Asks = std::function<bool(size_t prompt, size_t token)>;
    std::vector<TokenRange> fill(std::vector<Row>& rows, size_t logits, const Asks& asks);
    // StepInput::sequence_length of a step with these ranges.
    int64_t sequence_length(std::span<const TokenRange> ranges) const;
    // After the step. Prompts that end leave the reader.
    void advance(std::span<const TokenRange> ranges);

    bool done() const { return queue_.empty() && reading_.empty(); }

private:
    bool add(const PromptQueue::Admitted& reading, size_t logits, const Asks& asks, std::vector<Row>& rows,
             std::vector<TokenRange>& ranges);

    Engine& engine_;
    std::vector<Tokens> prompts_;
    SharedSequences sequences_;
    PromptQueue queue_;
    std::list<PromptQueue::Admitted> reading_;
    size_t asked_ = 0;  // logits of the step
};

}  // namespace refold
