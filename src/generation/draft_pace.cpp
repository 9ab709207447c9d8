#include "generation/draft_pace.h"

#include <algorithm>
#include <utility>

namespace refold {
namespace {

constexpr double kSavedForProbing = 0.02, kNewest = 1.0 / 8;
constexpr double kSpread = 1.0 / 32;  // of what is left
constexpr int64_t kTrial = 2;         // windows
constexpr int64_t kLeastSteps = 4;

}  // namespace

DraftPace::DraftPace(const std::vector<int64_t>& ways, int64_t window) : least_tokens_(window) {
    for (const int64_t drafts : ways) ways_.push_back({.drafts = drafts});
}

bool DraftPace::known(const Way& way) const { return way.windows >= kTrial; }

void DraftPace::took(double seconds, int64_t tokens, bool drafted) {
    if (drafted) {
        const double part = kSpread * spread_;
        seconds += part;
        spread_ -= part;
    }
    seconds_ += seconds;
    tokens_ += tokens;
    drafted_ |= drafted;
    ++steps_;
    if (tokens_ < least_tokens_ || steps_ < kLeastSteps) return;
    end_window();
    choose();
}

void DraftPace::read_text(double seconds) {
    spread_ += seconds;
    if (now_ != best_) saved_ -= seconds;
}

void DraftPace::end_window() {
    Way& way = ways_[drafted_ ? now_ : 0];
    const Way& best = ways_[best_];
    if (&way == &best || best.windows == 0)
        saved_ += kSavedForProbing * seconds_;
    else
        saved_ -= seconds_ - static_cast<double>(tokens_) * best.cost();
    // More than a window's time would be spent at once when the text changes.
    saved_ = std::min(saved_, seconds_);
    const double part = std::max(kNewest, 1.0 / static_cast<double>(++way.windows));
    way.seconds += part * (seconds_ - way.seconds);
    way.tokens += part * (static_cast<double>(tokens_) - way.tokens);
    way.measured = ++windows_;
    seconds_ = 0;
    tokens_ = 0;
    steps_ = 0;
    drafted_ = false;
}

void DraftPace::choose() {
    for (size_t i = 0; i < ways_.size(); ++i) {
        const bool better = !known(ways_[best_]) || ways_[i].cost() < ways_[best_].cost();
        if (known(ways_[i]) && better) best_ = i;
    }
    now_ = best_;
    if (!known(ways_[best_])) return;
    // The neighbour that was measured longest ago.
    size_t other = best_;
    for (const size_t i : {best_ - 1, best_ + 1})
        if (i < ways_.size() && (other == best_ || ways_[i].measured < ways_[other].measured)) other = i;
    if (other == best_) return;
    const double loss = static_cast<double>(least_tokens_) * (ways_[other].cost() - ways_[best_].cost());
    if (!known(ways_[other]) || saved_ >= loss) now_ = other;
}

}  // namespace refold
