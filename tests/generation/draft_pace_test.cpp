#include "generation/draft_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>

namespace refold {
namespace {

// What a step with so many drafts costs, and how many tokens it gives.
struct Step {
    double seconds = 1;
    double tokens = 1;
};
using Machine = std::function<Step(int64_t drafts)>;

struct Outcome {
    double seconds = 0;
    int64_t tokens = 0;
    std::map<int64_t, int64_t> steps;  // by drafts

    double cost() const { return seconds / static_cast<double>(tokens); }
};

// Steps of a pace on a machine with made-up times, until there are so many tokens.
Outcome run(DraftPace& pace, int64_t tokens, const Machine& machine, uint32_t seed = 1) {
    std::mt19937 random(seed);
    Outcome out;
    while (out.tokens < tokens) {
        const int64_t drafts = pace.drafts();
        const Step step = machine(drafts);
        // A whole number with this mean, and times that vary by a tenth.
        const auto given =
            static_cast<int64_t>(step.tokens + std::uniform_real_distribution(0.0, 1.0)(random));
        const double seconds = step.seconds * std::uniform_real_distribution(0.9, 1.1)(random);
        pace.took(seconds, given, drafts > 0);
        out.seconds += seconds;
        out.tokens += given;
        ++out.steps[drafts];
    }
    return out;
}

Machine fixed_gain(double seconds, double tokens) {
    return [=](int64_t drafts) { return drafts == 0 ? Step{} : Step{seconds, tokens}; };
}

TEST(DraftPace, BeginsWithoutDrafts) {
    DraftPace pace({0, 8}, 4);
    EXPECT_EQ(pace.drafts(), 0);
    EXPECT_EQ(DraftPace({0, 0}, 4).drafts(), 0);
}

// However much drafts cost, what they lose is bounded.
TEST(DraftPace, SwitchesItselfOff) {
    for (const double cost : {1.05, 1.5, 3.0, 8.0}) {
        DraftPace pace({0, 8}, 4);
        const Outcome outcome = run(pace, 4000, fixed_gain(cost, 1));
        EXPECT_LT(outcome.cost(), 1.03) << cost;
        EXPECT_GT(outcome.steps.at(8), 0);
    }
}

TEST(DraftPace, DraftsWhereItPays) {
    for (const double tokens : {1.2, 2.0, 6.0}) {
        DraftPace pace({0, 8}, 4);
        EXPECT_LT(run(pace, 4000, fixed_gain(1.1, tokens)).cost(), 1.06 * 1.1 / tokens) << tokens;
    }
}

// Each draft takes 0.2 steps and is accepted with probability 0.6 after those before it.
TEST(DraftPace, FindsTheBestNumber) {
    const auto machine = [](double each, double accepted) {
        return [=](int64_t drafts) {
            Step step{1 + each * static_cast<double>(drafts), 1};
            double all = 1;
            for (int64_t i = 0; i < drafts; ++i) step.tokens += all *= accepted;
            return step;
        };
    };
    const auto most_used = [](const Outcome& outcome) {
        return std::ranges::max_element(outcome.steps, {}, [](const auto& entry) { return entry.second; })
            ->first;
    };
    DraftPace unsure({0, 1, 2, 4, 8}, 4), sure({0, 1, 2, 4, 8}, 4), wrong({0, 1, 2, 4, 8}, 4);
    EXPECT_LE(most_used(run(unsure, 20'000, machine(0.2, 0.6))), 2);
    EXPECT_EQ(most_used(run(sure, 20'000, machine(0.05, 0.97))), 8);
    EXPECT_EQ(most_used(run(wrong, 20'000, machine(0.2, 0.1))), 0);
}

// Text that begins to repeat is noticed, and so is its end.
TEST(DraftPace, FollowsTheText) {
    DraftPace pace({0, 8}, 4);
    run(pace, 2000, fixed_gain(1.2, 1));
    const Outcome repeats = run(pace, 2000, fixed_gain(1.2, 4));
    EXPECT_LT(repeats.cost(), 0.5);
    const Outcome ends = run(pace, 2000, fixed_gain(1.2, 1));
    EXPECT_LT(ends.cost(), 1.06);
}

// Texts that are read for drafts are part of their cost.
TEST(DraftPace, ReadingMayNotPay) {
    const auto share_of_drafts = [](double reading) {
        DraftPace pace({0, 8}, 4);
        int64_t drafted = 0;
        constexpr int64_t kSteps = 5000;
        for (int64_t i = 0; i < kSteps; ++i) {
            const bool drafts = pace.drafts() > 0;
            // Every answer has 50 steps.
            if (drafts && i % 50 == 0) pace.read_text(reading);
            pace.took(1, drafts ? 2 : 1, drafts);
            drafted += drafts ? 1 : 0;
        }
        return static_cast<double>(drafted) / kSteps;
    };
    EXPECT_GT(share_of_drafts(10), 0.9);
    EXPECT_LT(share_of_drafts(500), 0.2);
}

// Steps in which nothing was drafted are steps without drafts.
TEST(DraftPace, NothingFoundIsNoDraft) {
    DraftPace pace({0, 8}, 4);
    for (int i = 0; i < 400; ++i) pace.took(1, 1, false);
    const Outcome outcome = run(pace, 400, fixed_gain(1.1, 4));
    EXPECT_LT(outcome.cost(), 0.5);
}

}  // namespace
}  // namespace refold
