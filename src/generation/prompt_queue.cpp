#include "generation/prompt_queue.h"

#include <algorithm>
#include <numeric>

namespace refold {
namespace {

// Prompts that are looked at in one step.
constexpr size_t kLookAhead = 256;

}  // namespace

std::vector<size_t> PromptQueue::order(const std::vector<Tokens>& prompts) {
    std::vector<size_t> order(prompts.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return std::lexicographical_compare(prompts[a].begin(), prompts[a].end(), prompts[b].begin(),
                                            prompts[b].end());
    });
    return order;
}

PromptQueue::PromptQueue(SharedSequences& sequences, std::vector<Tokens> prompts, std::vector<size_t> rooms)
    : sequences_(sequences),
      prompts_(std::move(prompts)),
      rooms_(std::move(rooms)),
      shared_(prompts_.size()),
      read_(prompts_.size()) {
    for (size_t p = 0; p < prompts_.size(); ++p) {
        // The last token is read in any case: its logits are wanted.
        if (p > 0) shared_[p] = std::min(common_prefix(prompts_[p - 1], prompts_[p]), prompts_[p].size() - 1);
        waiting_.push_back(p);
    }
    begin_step();
}

void PromptQueue::begin_step() {
    next_ = waiting_.begin();
    looked_ = 0;
}

std::optional<PromptQueue::Admitted> PromptQueue::next() {
    for (; next_ != waiting_.end() && looked_ < kLookAhead; ++next_) {
        ++looked_;
        const size_t p = *next_;
        if (p > 0 && !read_[p - 1] && sequences_.known(prompts_[p], shared_[p]) < shared_[p]) continue;
        // The first prompt may go on from an earlier queue's.
        const size_t most = p > 0 ? shared_[p] : prompts_[p].size() - 1;
        SharedSequences::Sequence* sequence = sequences_.begin(prompts_[p], rooms_[p], most);
        if (sequence == nullptr) return std::nullopt;
        next_ = waiting_.erase(next_);
        return Admitted{p, sequence};
    }
    return std::nullopt;
}

}  // namespace refold
