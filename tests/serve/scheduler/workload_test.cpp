// Random workloads: every request gets the same result as alone, whatever else runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "serve/scheduler.h"
#include "serve/single_stream.h"

namespace refold {
namespace {

class Random {
public:
    explicit Random(uint32_t seed) : random_(seed) {}
    int64_t below(int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(random_); }
    int64_t between(int64_t first, int64_t last) { return first + below(last - first + 1); }
    bool chance(double probability) { return std::bernoulli_distribution(probability)(random_); }

private:
    std::mt19937 random_;
};

struct Case {
    FakeEngineOptions engine;
    SchedulerOptions scheduler;
    std::vector<GenerationRequest> requests;
};

ExitPolicy random_policy(Random& random, int32_t loops) {
    ExitPolicy policy;
    policy.kv = std::array{ExitedKv::propagate, ExitedKv::catch_up, ExitedKv::share}[random.below(3)];
    switch (loops > 1 ? random.below(4) : 0) {
        case 0: return policy;
        case 1:
            policy.rule = ExitRule::fixed;
            policy.loop = static_cast<int32_t>(random.between(1, loops));
            return policy;
        case 2:
            policy.rule = ExitRule::probability;
            policy.thresholds = {0.3};
            return policy;
        default:
            policy.rule = ExitRule::entropy;
            for (int32_t loop = 1; loop < loops; ++loop) policy.thresholds.push_back(1.5 + 0.5 * loop);
            return policy;
    }
}

GenerationRequest random_request(Random& random, const Case& setting) {
    GenerationRequest request;
    request.prompt.resize(static_cast<size_t>(random.between(1, random.chance(0.3) ? 40 : 6)));
    for (int32_t& token : request.prompt) token = static_cast<int32_t>(random.below(setting.engine.n_vocab));
    // Many prompts begin alike.
    const auto alike = std::min(request.prompt.size(), static_cast<size_t>(random.below(30)));
    for (size_t i = 0; i < alike; ++i) request.prompt[i] = static_cast<int32_t>(i % 7);
    request.max_tokens = random.between(random.chance(0.1) ? 0 : 1, 30);
    request.ignore_eos = random.chance(0.5);
    request.logprobs = random.chance(0.3) ? 0 : -1;
    request.prompt_logprobs = random.chance(0.2);
    if (random.chance(0.2)) request.stop = {"a", "th"};
    if (random.chance(0.3))
        request.sampling = {.temperature = 1, .top_k = 20, .seed = static_cast<uint32_t>(random.below(1000))};
    if (random.chance(0.3) && setting.scheduler.draft == 0) {
        for (int64_t i = random.below(30); i > 0; --i)
            request.exits.push_back(static_cast<int32_t>(random.between(1, setting.engine.loops)));
    }
    return request;
}

Case random_case(uint32_t seed) {
    Random random(seed);
    Case out;
    out.engine.loops = static_cast<int32_t>(random.between(1, 4));
    out.engine.n_vocab = 64;
    out.engine.context = random.chance(0.5) ? 256 : 60;
    out.engine.kv_tokens = random.chance(0.5) ? 2000 : out.engine.context + random.below(60);
    out.scheduler.slots = random.between(1, 9);
    out.scheduler.queue = random.between(0, 20);
    out.scheduler.prefill_rows = random.between(1, 40);
    if (random.chance(0.3)) out.scheduler.prefill_share = random.chance(0.5) ? 0.1 : 0.6;
    out.scheduler.prefixes = random.chance(0.6);
    out.engine.max_rows = out.scheduler.slots + random.below(random.chance(0.5) ? 4 : 60);
    if (out.engine.loops == 1 && random.chance(0.5)) {
        out.scheduler.lookup = random.between(1, 6);
        out.engine.max_rows += out.scheduler.lookup;
    }
    if (out.engine.loops > 1 && random.chance(0.3)) {
        out.scheduler.draft = random.between(1, 6);
        out.scheduler.draft_loop = static_cast<int32_t>(random.between(1, out.engine.loops - 1));
    } else {
        out.scheduler.exit = random_policy(random, out.engine.loops);
        if (random.chance(0.2)) out.scheduler.batching = BatchingPolicy::fixed;
    }
    const int64_t count = out.scheduler.batching == BatchingPolicy::fixed ? 10 : 30;
    for (int64_t i = 0; i < count; ++i) out.requests.push_back(random_request(random, out));
    return out;
}

std::string describe(uint32_t seed, const Case& c, size_t request) {
    return fmt::format(
        "seed {}, request {}, {} loops, {} slots, {} rows, draft {} after {}, lookup {}, prefixes {}, exits "
        "{} kv {}",
        seed, request, c.engine.loops, c.scheduler.slots, c.engine.max_rows, c.scheduler.draft,
        c.scheduler.draft_loop, c.scheduler.lookup, c.scheduler.prefixes,
        exit_rule_name(c.scheduler.exit.rule), exited_kv_name(c.scheduler.exit.kv));
}

void run_case(uint32_t seed) {
    const Case c = random_case(seed);
    Random random(seed + 1'000'000);
    FakeEngine engine(c.engine);
    Scheduler scheduler(engine, test_tokenizer(), c.scheduler);
    std::vector<std::unique_ptr<Generation>> generations(c.requests.size());
    std::vector<Response> got(c.requests.size());
    size_t collected = 0;
    for (size_t i = 0; i < c.requests.size(); ++i) {
        while (!(generations[i] = scheduler.submit(c.requests[i]))) {
            if (collected == i) {  // a slot is about to be free
                std::this_thread::yield();
                continue;
            }
            got[collected] = collect(*generations[collected]);
            ++collected;
        }
        if (random.chance(0.3)) std::this_thread::sleep_for(std::chrono::microseconds(random.below(500)));
    }
    for (; collected < c.requests.size(); ++collected) got[collected] = collect(*generations[collected]);
    scheduler.shutdown(std::chrono::milliseconds(0));
    EXPECT_EQ(engine.open_sequences(), 0) << seed;
    EXPECT_EQ(engine.kv_tokens_used(), 0) << seed;

    FakeEngine alone(c.engine);
    SingleStream reference(alone, c.scheduler);
    for (size_t i = 0; i < c.requests.size(); ++i)
        expect_same(got[i], reference.run(c.requests[i]), describe(seed, c, i));
}

TEST(Workload, EveryResponseIsTheSingleStreams) {
    for (uint32_t seed = 0; seed < 60 && !testing::Test::HasFailure(); ++seed) run_case(seed);
}

TEST(Workload, ThousandClientsAtOnce) {
    FakeEngine engine({.loops = 2, .kv_tokens = 4000});
    SchedulerOptions options{.slots = 16, .queue = 40};
    options.exit.rule = ExitRule::probability;
    options.exit.thresholds = {0.3};
    FakeEngine alone({.loops = 2});
    SingleStream reference(alone, options);
    constexpr size_t kKinds = 20;
    std::vector<GenerationRequest> requests(kKinds);
    std::vector<Response> expected;
    for (size_t i = 0; i < kKinds; ++i) {
        requests[i].prompt = {static_cast<int32_t>(i), 5, 6};
        requests[i].max_tokens = 1 + static_cast<int64_t>(i % 7);
        expected.push_back(reference.run(requests[i]));
    }
    Scheduler scheduler(engine, test_tokenizer(), options);
    std::atomic<size_t> done = 0, gone = 0;
    std::vector<std::thread> clients;
    for (size_t i = 0; i < 1000; ++i) {
        clients.emplace_back([&, i] {
            std::unique_ptr<Generation> generation;
            while (!(generation = scheduler.submit(requests[i % kKinds])))
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            if (i % 9 == 4) {  // leaves
                if (i % 2 == 0) generation->next(std::chrono::milliseconds(0));
                ++gone;
                return;
            }
            EXPECT_LE(scheduler.status().running, 16);
            expect_same(collect(*generation), expected[i % kKinds], std::to_string(i));
            ++done;
        });
    }
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(done + gone, 1000U);
    scheduler.shutdown(std::chrono::milliseconds(0));
    EXPECT_EQ(engine.open_sequences(), 0);
    EXPECT_GT(scheduler.status().finished[FinishReason::length], 0U);
}

}  // namespace
}  // namespace refold
