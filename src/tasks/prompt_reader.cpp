#include "tasks/prompt_reader.h"

#include <algorithm>
#include <numeric>

namespace refold {
namespace {

// Prompts that are looked at for what may begin.
constexpr size_t kLookAhead = 256;

}  // namespace

std::vector<size_t> PromptReader::order(const std::vector<Tokens>& prompts) {
    std::vector<size_t> order(prompts.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return std::lexicographical_compare(prompts[a].begin(), prompts[a].end(), prompts[b].begin(),
                                            prompts[b].end());
    });
    return order;
}

PromptReader::PromptReader(BatchEngine& engine, std::vector<Tokens> prompts, size_t room)
    : engine_(engine),
      prompts_(std::move(prompts)),
      room_(room),
      shared_(prompts_.size()),
      read_(prompts_.size()),
      sequences_(engine) {
    for (size_t p = 0; p < prompts_.size(); ++p) {
        // The last token is read in any case.
        if (p > 0) shared_[p] = std::min(common_prefix(prompts_[p - 1], prompts_[p]), prompts_[p].size() - 1);
        waiting_.push_back(p);
    }
}

// False when the step is full.
bool PromptReader::add(const Reading& reading, const Limits& limits, const Asks& asks,
                       std::vector<BatchRow>& rows, std::vector<Part>& parts) {
    const Tokens prompt = prompts_[reading.prompt];
    const auto max_rows = static_cast<size_t>(engine_.max_rows());
    Part part{reading.prompt, reading.sequence, reading.sequence->done, reading.sequence->done};
    while (part.last < prompt.size() && rows.size() < max_rows && asked_ < limits.logits) {
        const bool asked = asks(reading.prompt, part.last);
        asked_ += asked ? 1 : 0;
        rows.push_back({.sequence = reading.sequence->id,
                        .position = static_cast<int64_t>(part.last),
                        .token = prompt[part.last],
                        .logits = asked});
        ++part.last;
    }
    part.ends = part.last == prompt.size();
    if (part.last > part.first) parts.push_back(part);
    return part.ends;
}

std::vector<PromptReader::Part> PromptReader::fill(std::vector<BatchRow>& rows, const Limits& limits,
                                                   const Asks& asks) {
    std::vector<Part> parts;
    asked_ = 0;
    for (const Reading& reading : reading_)
        if (!add(reading, limits, asks, rows, parts)) return parts;
    size_t looked = 0;
    for (auto it = waiting_.begin(); it != waiting_.end() && looked < kLookAhead; ++looked) {
        if (reading_.size() >= limits.sequences || rows.size() >= static_cast<size_t>(engine_.max_rows()) ||
            asked_ >= limits.logits)
            break;
        const size_t p = *it;
        // What the prompt before is about to compute is waited for.
        if (p > 0 && !read_[p - 1] && sequences_.known(prompts_[p], shared_[p]) < shared_[p]) {
            ++it;
            continue;
        }
        SharedSequences::Sequence* sequence =
            sequences_.begin(prompts_[p], prompts_[p].size() + room_, shared_[p]);
        if (sequence == nullptr) break;
        it = waiting_.erase(it);
        reading_.push_back({p, sequence});
        if (!add(reading_.back(), limits, asks, rows, parts)) break;
    }
    return parts;
}

void PromptReader::advance(std::span<const Part> parts) {
    for (const Part& part : parts) {
        part.sequence->done = part.last;
        if (!part.ends) continue;
        read_[part.prompt] = true;
        std::erase_if(reading_, [&](const Reading& r) { return r.prompt == part.prompt; });
    }
}

}  // namespace refold
