// Whether drafts pay, and how many at a time: decided while text is generated, from what was measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace refold {

// Ways to generate are numbers of drafts, of which 0 is without. The rule:
//   - Time and tokens are added up over windows of some tokens and steps. A way's cost, seconds per token, is
//   a mean of its
//     windows in which a new one counts an eighth. So it holds what verifying and drafting cost, and how many
//     drafts are accepted, whatever drafts.
//   - What the draft model takes to read a text once is spread over the steps with drafts that follow.
//   - The cheapest way is used.
//   - Its neighbours are probed: a way that is new for two windows, others whenever the time that they are
//     expected to lose has been saved up. Two percent of all time is saved for that.
// So text is generated at least 0.98 times as fast as without drafts once the losses of new ways are made up
// for. The decision changes no output: drafts are verified.
class DraftPace {
public:
    // `ways`: ascending; the first one is 0, or there is no other. `window`: least tokens of a window.
    DraftPace(const std::vector<int64_t>& ways, int64_t window);

    // Most drafts at a time in the next step.
    int64_t drafts() const { return ways_[now_].drafts; }
    // A step has taken `seconds` and given so many tokens. `drafted`: some were drafted, or else it was a
    // step without drafts, whatever drafts() had allowed.
    void took(double seconds, int64_t tokens, bool drafted);
    // Beside the next step, a text was read for drafts.
    void read_text(double seconds);

private:
    struct Way {
        int64_t drafts = 0;
        int64_t windows = 0;
        double seconds = 0, tokens = 0;  // of a window, means
        int64_t measured = 0;            // when it was last: windows of all ways so far

        double cost() const { return seconds / tokens; }
    };
    bool known(const Way& way) const;
    void end_window();
    void choose();

    std::vector<Way> ways_;
    const int64_t least_tokens_;
    size_t now_ = 0, best_ = 0;
    double saved_ = 0;   // seconds that probing may lose
    double spread_ = 0;  // seconds of reading that no step has been charged with
    int64_t windows_ = 0;
    // The window so far.
    double seconds_ = 0;
    int64_t tokens_ = 0, steps_ = 0;
    bool drafted_ = false;
};

}  // namespace refold
