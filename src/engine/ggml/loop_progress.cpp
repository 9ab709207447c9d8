#include "engine/ggml/loop_progress.h"

#include <algorithm>

#include "core/error.h"

namespace refold {

void LoopProgress::begin() { next_ = ready_ = lengths_; }

void LoopProgress::check(const Row& row) {
    const auto loops = static_cast<int32_t>(lengths_.size());
    const bool keys_only = row.work == Row::Work::keys_only;
    const auto refuse = [&](const std::string& why) {
        fail(ErrorCode::internal, "engine", "token {} of sequence {} cannot run at loop {}: {}", row.position,
             row.sequence, row.loop, why);
    };
    if (row.loop < 0 || row.loop >= loops) refuse(fmt::format("there are {}", loops));
    if (keys_only && row.loop == 0) refuse("keys only are of a residual stream, which it has not yet");
    if (keys_only && row.logits) refuse("keys only have no logits");
    const auto loop = static_cast<size_t>(row.loop);
    if (row.position != next_[loop]) refuse(fmt::format("the next token there is {}", next_[loop]));
    if (loop > 0 && row.position >= ready_[loop - 1])
        refuse(fmt::format("it needs a step at loop {} before", row.loop - 1));
    ++next_[loop];
    // Keys alone leave the residual stream as it is.
    if (keys_only && ready_[loop] == row.position) ++ready_[loop];
}

void LoopProgress::commit() { set_lengths(next_); }

void LoopProgress::set_lengths(const std::vector<int64_t>& lengths) {
    const int64_t completed = lengths.back() - complete();
    for (int64_t i = 0; i < completed && !residuals_.empty(); ++i) residuals_.pop_front();
    for (int64_t i = 0; i < completed && !remaining_.empty(); ++i) remaining_.pop_front();
    lengths_ = lengths;
}

std::span<const float> LoopProgress::residual(int64_t position) const {
    return residuals_[static_cast<size_t>(position - complete())];
}

void LoopProgress::set_residual(int64_t position, std::span<const float> residual) {
    const auto index = static_cast<size_t>(position - complete());
    if (index == residuals_.size()) residuals_.emplace_back();
    residuals_[index].assign(residual.begin(), residual.end());
}

double LoopProgress::exited(int64_t position) const {
    return 1 - remaining_[static_cast<size_t>(position - complete())];
}

void LoopProgress::leave(int64_t position, double probability) {
    const auto index = static_cast<size_t>(position - complete());
    if (index == remaining_.size()) remaining_.push_back(1);
    remaining_[index] *= 1 - probability;
}

void LoopProgress::share(int64_t position, int32_t loop) {
    const auto from = static_cast<size_t>(loop);
    const bool exists = loop > 0 && from < lengths_.size() && position < lengths_[from - 1];
    if (!exists || position != lengths_[from] || position != complete()) {
        fail(ErrorCode::internal, "engine", "token {} cannot share keys and values from loop {} on", position,
             loop);
    }
    std::vector<int64_t> lengths = lengths_;
    std::fill(lengths.begin() + loop, lengths.end(), position + 1);
    set_lengths(lengths);
}

void LoopProgress::truncate(int64_t length) {
    for (int64_t& own : lengths_) own = std::min(own, length);
    const auto open = static_cast<size_t>(lengths_.front() - lengths_.back());
    residuals_.resize(std::min(residuals_.size(), open));
    remaining_.resize(std::min(remaining_.size(), open));
}

void LoopProgress::assign(int64_t tokens) {
    std::fill(lengths_.begin(), lengths_.end(), tokens);
    residuals_.clear();
    remaining_.clear();
}

}  // namespace refold
