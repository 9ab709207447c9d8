// Shares the engine's time between prompts and the requests that generate.
#pragma once

namespace refold {

// A step with rows of prompts takes longer than one without, and all that generate wait for it. What prompts
// took beyond their share, the next steps without them make up for: on every machine the same share, whatever
// a row costs there.
class PromptShare {
public:
    // Of the time while requests generate, in (0, 1]; 1: no limit.
    explicit PromptShare(double share) : share_(share) {}

    // Whether the next step may have rows of prompts.
    bool open(bool generating) const { return !generating || share_ >= 1 || owed_ <= 0; }
    // A step has taken this long.
    void add(double seconds, bool generating, bool prompts);

private:
    double share_;
    double step_ = 0;  // s, of a step without prompts: a running average
    double owed_ = 0;  // s, that prompts took beyond their share; negative: that they may take at once
};

}  // namespace refold
