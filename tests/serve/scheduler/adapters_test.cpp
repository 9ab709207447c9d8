// Requests with different adapters share steps and nothing else.
#include <map>

#include "serve/scheduler.h"
#include "serve/single_stream.h"

namespace refold {
namespace {

GenerationRequest request_with(int32_t adapter) {
    GenerationRequest request;
    for (int32_t i = 0; i < 24; ++i) request.prompt.push_back(1 + i % 7);
    request.max_tokens = 10;
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    request.adapter = adapter;
    return request;
}

TEST(Adapters, ShareNoPrefixes) {
    FakeEngine engine({});
    SchedulerOptions options;
    options.slots = 3;
    options.prefixes = true;
    Scheduler scheduler(engine, test_tokenizer(), options);
    std::map<int32_t, std::vector<int32_t>> first;
    for (const int32_t adapter : {-1, 0, 1})
        first[adapter] = collect(*scheduler.submit(request_with(adapter))).tokens;
    EXPECT_NE(first[-1], first[0]);
    EXPECT_NE(first[0], first[1]);
    EXPECT_EQ(scheduler.status().known_tokens, 0U);
    // Again, all at the same time: each finds its own prompt.
    std::map<int32_t, std::unique_ptr<Generation>> running;
    for (const int32_t adapter : {0, -1, 1}) running[adapter] = scheduler.submit(request_with(adapter));
    for (const auto& [adapter, generation] : running) EXPECT_EQ(collect(*generation).tokens, first[adapter]);
    EXPECT_EQ(scheduler.status().known_tokens, 3U * 23);
}

}  // namespace
}  // namespace refold
