// Which threads spin: an engine that computes puts others to sleep, and large products by BLAS put engines to
// sleep.
#include <gtest/gtest.h>

#include "core/spinning_threads.h"
#include "engine/compare.h"
#include "model/small_model.h"

namespace refold {
namespace {

TEST(EngineThreads, AnEngineThatComputesIsTheOneAwake) {
    const Model model = small_model(SmallShape{.layers = 1}, scattered);
    const auto tokens = random_tokens(4, model.config.n_vocab, 1);
    SingleSequence engine(model, {.threads = 2, .context = 8});
    int slept = 0;
    SpinningThreads others([&] { ++slept; });
    others.wake();
    engine.evaluate(tokens);
    EXPECT_EQ(slept, 1);
    engine.truncate(0);
    engine.evaluate(tokens);
    EXPECT_EQ(slept, 1);
    others.wake();  // the engine sleeps, and computes when it is asked to
    engine.truncate(0);
    engine.evaluate(tokens);
    EXPECT_EQ(slept, 2);
}

}  // namespace
}  // namespace refold
