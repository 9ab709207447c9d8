#include "engine/ggml/depths.h"

#include <algorithm>

#include "core/error.h"

namespace refold {

void Depths::begin() { next_ = ready_ = lengths_; }

void Depths::check(const BatchRow& row) {
    const auto stages = static_cast<int32_t>(lengths_.size());
    const bool keys_only = row.work == BatchRow::Work::keys_only;
    const auto refuse = [&](const std::string& why) {
        fail(ErrorCode::internal, "batch", "token {} of sequence {} cannot run at stage {}: {}", row.position,
             row.sequence, row.stage, why);
    };
    if (row.stage < 0 || row.stage >= stages) refuse(fmt::format("there are {}", stages));
    if (keys_only && row.stage == 0) refuse("keys only are of a residual stream, which it has not yet");
    if (keys_only && row.logits) refuse("keys only have no logits");
    const auto stage = static_cast<size_t>(row.stage);
    if (row.position != next_[stage]) refuse(fmt::format("the next token there is {}", next_[stage]));
    if (stage > 0 && row.position >= ready_[stage - 1])
        refuse(fmt::format("it needs a step at stage {} before", row.stage - 1));
    ++next_[stage];
    // Keys alone leave the residual stream as it is.
    if (keys_only && ready_[stage] == row.position) ++ready_[stage];
}

void Depths::commit() { set_lengths(next_); }

void Depths::set_lengths(const std::vector<int64_t>& lengths) {
    const int64_t completed = lengths.back() - complete();
    for (int64_t i = 0; i < completed && !residuals_.empty(); ++i) residuals_.pop_front();
    lengths_ = lengths;
}

std::span<const float> Depths::residual(int64_t position) const {
    return residuals_[static_cast<size_t>(position - complete())];
}

void Depths::set_residual(int64_t position, std::span<const float> residual) {
    const auto place = static_cast<size_t>(position - complete());
    if (place == residuals_.size()) residuals_.emplace_back();
    residuals_[place].assign(residual.begin(), residual.end());
}

void Depths::share(int64_t position, int32_t stage) {
    const auto from = static_cast<size_t>(stage);
    const bool exists = stage > 0 && from < lengths_.size() && position < lengths_[from - 1];
    if (!exists || position != lengths_[from] || position != complete()) {
        fail(ErrorCode::internal, "batch", "token {} cannot share keys and values from stage {} on", position,
             stage);
    }
    std::vector<int64_t> lengths = lengths_;
    std::fill(lengths.begin() + stage, lengths.end(), position + 1);
    set_lengths(lengths);
}

void Depths::truncate(int64_t length) {
    for (int64_t& own : lengths_) own = std::min(own, length);
    residuals_.resize(std::min(residuals_.size(), static_cast<size_t>(lengths_.front() - lengths_.back())));
}

void Depths::assign(int64_t tokens) {
    std::fill(lengths_.begin(), lengths_.end(), tokens);
    residuals_.clear();
}

}  // namespace refold
