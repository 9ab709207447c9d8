#include "generation/prompt_reader.h"

#include <algorithm>
#include <iterator>

namespace refold {
namespace {

std::vector<size_t> lengths_of(const std::vector<PromptReader::Tokens>& prompts) {
    std::vector<size_t> lengths;
    std::transform(prompts.begin(), prompts.end(), std::back_inserter(lengths),
                   [](const auto& prompt) { return prompt.size(); });
    return lengths;
}

}  // namespace

PromptReader::PromptReader(Engine& engine, const std::vector<Tokens>& prompts)
    : engine_(engine),
      prompts_(prompts),
      sequences_(engine),
      queue_(sequences_, prompts, lengths_of(prompts)) {}

// False when the step is full.
bool PromptReader::add(const PromptQueue::Admitted& reading, size_t logits, const Asks& asks,
                       std::vector<Row>& rows, std::vector<TokenRange>& ranges) {
    const Tokens prompt = prompts_[reading.prompt];
    const auto max_rows = static_cast<size_t>(engine_.capabilities().max_rows);
    TokenRange range{reading.prompt, reading.sequence, reading.sequence->done, reading.sequence->done};
    while (range.last < prompt.size() && rows.size() < max_rows && asked_ < logits) {
        const bool asked = asks(reading.prompt, range.last);
        asked_ += asked ? 1 : 0;
        rows.push_back({.sequence = reading.sequence->id,
                        .position = static_cast<int64_t>(range.last),
                        .token = prompt[range.last],
                        .logits = asked});
        ++range.last;
    }
    range.ends = range.last == prompt.size();
    if (range.last > range.first) ranges.push_back(range);
    return range.ends;
}

std::vector<PromptReader::TokenRange> PromptReader::fill(std::vector<Row>& rows, size_t logits,
                                                         const Asks& asks) {
    std::vector<TokenRange> ranges;
    asked_ = 0;
    for (const auto& reading : reading_)
        if (!add(reading, logits, asks, rows, ranges)) return ranges;
    queue_.begin_step();
    while (rows.size() < static_cast<size_t>(engine_.capabilities().max_rows) && asked_ < logits) {
        const auto admitted = queue_.next();
        if (!admitted) break;
        reading_.push_back(*admitted);
        if (!add(reading_.back(), logits, asks, rows, ranges)) break;
    }
    return ranges;
}

int64_t PromptReader::sequence_length(std::span<const TokenRange> ranges) const {
    size_t longest = 0;
    for (const TokenRange& range : ranges) longest = std::max(longest, prompts_[range.prompt].size());
    return static_cast<int64_t>(longest);
}

void PromptReader::advance(std::span<const TokenRange> ranges) {
    for (const TokenRange& range : ranges) {
        range.sequence->done = range.last;
        if (!range.ends) continue;
        queue_.read(range.prompt);
        sequences_.end(*range.sequence);
        std::erase_if(reading_, [&](const auto& reading) { return reading.prompt == range.prompt; });
    }
}

}  // namespace refold
