#include "serve/prompt_share.h"

#include <algorithm>

namespace refold {

void PromptShare::add(double seconds, bool generating, bool prompts) {
    constexpr double kNewest = 0.2;
    if (!generating) {  // nobody waits for tokens
        owed_ = 0;
        return;
    }
    if (!prompts) step_ = step_ > 0 ? (1 - kNewest) * step_ + kNewest * seconds : seconds;
    const double generated = prompts ? std::min(seconds, step_) : seconds;
    // What is left of a step's share counts for the next one, no more.
    owed_ = std::max(-step_ * share_, owed_ + (seconds - generated) * (1 - share_) - generated * share_);
}

}  // namespace refold
