// Steps get one thread fewer while another process is in the way, and all of them again afterwards.
#include "engine/ggml/thread_choice.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>

namespace refold {
namespace {

// Runs steps that take duration(threads) seconds; the sum of their durations.
double run(ThreadChoice& choice, int steps, const std::function<double(int)>& duration) {
    double sum = 0;
    for (int i = 0; i < steps; ++i) {
        const double seconds = duration(choice.threads());
        choice.took(seconds);
        sum += seconds;
    }
    return sum;
}

double idle(int threads) { return threads == 2 ? 0.004 : 0.007; }
// The second thread shares its core.
double busy(int threads) { return threads == 2 ? 0.016 : 0.0075; }

TEST(ThreadChoice, TakesFewerWhileTheMachineIsBusy) {
    ThreadChoice choice(2, ThreadChoice::kShortSteps);
    run(choice, 100, idle);
    EXPECT_EQ(choice.threads(), 2);
    EXPECT_LT(run(choice, 1000, busy), 1000 * 0.0085);
    run(choice, 200, idle);
    EXPECT_EQ(choice.threads(), 2);
    EXPECT_LT(run(choice, 1000, idle), 1000 * 0.0041);
}

// Nothing says that it could be faster, so that has to be tried.
TEST(ThreadChoice, AlwaysBusy) {
    ThreadChoice choice(2, ThreadChoice::kShortSteps);
    EXPECT_LT(run(choice, 500, busy), 500 * 0.0085);
}

TEST(ThreadChoice, LongSteps) {
    ThreadChoice choice(2, ThreadChoice::kLongSteps);
    EXPECT_LT(run(choice, 100, busy), 100 * 0.0095);
    run(choice, 30, idle);
    EXPECT_LT(run(choice, 100, idle), 100 * 0.0043);
}

// The first step reads weights from the disk and gets its memory.
TEST(ThreadChoice, TheFirstStepTellsNothing) {
    for (const ThreadChoice::Windows windows : {ThreadChoice::kShortSteps, ThreadChoice::kLongSteps}) {
        ThreadChoice choice(2, windows);
        choice.took(0.4);
        EXPECT_LT(run(choice, 30, idle), 30 * 0.004 + 0.0031);  // a trial ends after a step
        EXPECT_EQ(choice.threads(), 2);
    }
}

// A long step that is fast by chance is no reason to go on with fewer threads.
TEST(ThreadChoice, OneLuckyLongStepIsNotEnough) {
    ThreadChoice choice(2, ThreadChoice::kLongSteps);
    bool lucky = true;
    EXPECT_LT(run(choice, 40,
                  [&](int threads) {
                      return threads == 1 && std::exchange(lucky, false) ? 0.0035 : idle(threads);
                  }),
              40 * 0.004 + 0.004);
}

TEST(ThreadChoice, BusyFromTheFirstStepOn) {
    ThreadChoice choice(2, ThreadChoice::kShortSteps);
    // One lucky step tells what is usual.
    int step = 0;
    EXPECT_LT(run(choice, 500, [&](int threads) { return ++step % 9 == 0 ? idle(threads) : busy(threads); }),
              500 * 0.0095);
}

TEST(ThreadChoice, LongerStepsForOtherReasonsKeepAllThreads) {
    ThreadChoice choice(4, ThreadChoice::kShortSteps);
    double context = 0;
    const auto longer = [&](int threads) { return 0.002 * (1 + (context += 0.01)) * 4 / threads; };
    run(choice, 2000, longer);
    // At once five times as long: one trial, and not again.
    EXPECT_LT(run(choice, 200, [](int threads) { return 0.8 / threads; }), 200 * 0.8 / 4 * 1.03);
    EXPECT_EQ(choice.threads(), 4);
}

TEST(ThreadChoice, OneThreadIsOne) {
    ThreadChoice choice(1, ThreadChoice::kShortSteps);
    run(choice, 100, [](int) { return 0.01; });
    run(choice, 100, [](int) { return 0.1; });
    EXPECT_EQ(choice.threads(), 1);
}

}  // namespace
}  // namespace refold
