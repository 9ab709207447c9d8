#include "serve/prompt_share.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace refold {
namespace {

// Steps of 10 ms without prompts; rows of prompts take `extra` ms more.
double share_of_prompts(double share, double extra) {
    PromptShare shared(share);
    double prompts = 0, all = 0;
    for (int step = 0; step < 1000; ++step) {
        const bool open = shared.open(true);
        const double took = open ? 10 + extra : 10;
        shared.add(took, true, open);
        all += took;
        if (open) prompts += extra;
    }
    return prompts / all;
}

TEST(PromptShare, HoldsWhateverRowsCost) {
    for (const double extra : {2.0, 10.0, 35.0, 400.0}) {
        for (const double share : {0.1, 0.33, 0.5, 0.9}) {
            const double most = std::min(share, extra / (extra + 10));  // less is there when rows are cheap
            EXPECT_NEAR(share_of_prompts(share, extra), most, 0.05) << share << ", " << extra;
        }
        EXPECT_NEAR(share_of_prompts(1, extra), extra / (extra + 10), 1e-9);
    }
}

TEST(PromptShare, NothingIsOwedWhereNobodyWaits) {
    PromptShare shared(0.5);
    EXPECT_TRUE(shared.open(true));
    shared.add(1, true, false);
    shared.add(5, true, true);
    EXPECT_FALSE(shared.open(true));
    EXPECT_TRUE(shared.open(false));
    shared.add(100, false, true);
    EXPECT_TRUE(shared.open(true));
}

}  // namespace
}  // namespace refold
