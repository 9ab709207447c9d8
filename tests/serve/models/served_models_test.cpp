// On real engines, requests of a workload get the same results as alone.
#include <gtest/gtest.h>

#include <random>

#include "engine/compare.h"
#include "engine/looped_models.h"
#include "model/load.h"
#include "serve/scheduler.h"
#include "serve/single_stream.h"

namespace refold {
namespace {

constexpr int64_t kContext = 48;

EngineOptions options_of(bool by_loop) {
    return {.threads = 1,
            .context = kContext,
            .chunk = 64,
            .f32 = true,
            .sequences = 0,
            .kv_tokens = 5 * kContext,
            .by_loop = by_loop};
}

std::vector<GenerationRequest> make_requests(int64_t n_vocab, int64_t loops, bool replay, size_t count = 20) {
    std::mt19937 random(static_cast<uint32_t>(n_vocab));
    const auto between = [&](int64_t first, int64_t last) {
        return std::uniform_int_distribution<int64_t>(first, last)(random);
    };
    std::vector<GenerationRequest> requests(count);
    for (GenerationRequest& request : requests) {
        request.prompt.resize(static_cast<size_t>(between(1, 24)));
        for (int32_t& token : request.prompt) token = static_cast<int32_t>(between(0, n_vocab - 1));
        request.max_tokens = between(1, 20);
        request.ignore_eos = true;
        while (replay && static_cast<int64_t>(request.exits.size()) < request.max_tokens)
            request.exits.push_back(static_cast<int32_t>(between(1, loops)));
    }
    return requests;
}

std::vector<Response> serve(Engine& engine, const SchedulerOptions& options,
                            const std::vector<GenerationRequest>& requests) {
    Scheduler scheduler(engine, test_tokenizer(), options);
    std::vector<std::unique_ptr<Generation>> generations;
    for (const GenerationRequest& request : requests) generations.push_back(scheduler.submit(request));
    std::vector<Response> responses;
    for (const auto& generation : generations) responses.push_back(collect(*generation));
    scheduler.shutdown(std::chrono::milliseconds(0));
    EXPECT_EQ(engine.kv_tokens_used(), 0);
    return responses;
}

void expect_single_streams(const Model& model, bool by_loop, const SchedulerOptions& options, bool replay,
                           const std::string& label) {
    const auto requests =
        make_requests(model.config.n_vocab, std::max<int64_t>(model.topology.loops, 1), replay);
    const auto engine = make_engine(model, options_of(by_loop));
    const auto alone = make_engine(model, options_of(by_loop));
    const auto responses = serve(*engine, options, requests);
    SingleStream single(*alone, options);
    for (size_t i = 0; i < requests.size(); ++i)
        expect_same(responses[i], single.run(requests[i]), label + " " + std::to_string(i));
}

SchedulerOptions four_slots() {
    SchedulerOptions options;
    options.slots = 4;
    options.prefill_rows = 20;
    return options;
}

TEST(ServedModels, DenseGreedyIsTheEngines) {
    const Model model = load_model(REFOLD_FIXTURES "/llama_gqa/model.gguf");
    const auto requests = make_requests(model.config.n_vocab, 1, false);
    for (const BatchingPolicy batching : {BatchingPolicy::continuous, BatchingPolicy::fixed}) {
        SchedulerOptions options = four_slots();
        options.batching = batching;
        const auto batched = make_engine(model, options_of(false));
        const auto responses = serve(*batched, options, requests);
        SingleSequence sequence(model, of_one_sequence(options_of(false)));
        for (size_t i = 0; i < requests.size(); ++i) {
            sequence.truncate(0);
            auto logits = sequence.evaluate(requests[i].prompt);
            for (const int32_t token : responses[i].tokens) {
                ASSERT_EQ(token, std::max_element(logits.begin(), logits.end()) - logits.begin()) << i;
                logits = sequence.evaluate({&token, 1});
            }
            EXPECT_EQ(static_cast<int64_t>(responses[i].tokens.size()), requests[i].max_tokens);
        }
    }
}

TEST(ServedModels, LoopedAtFullDepth) {
    const Model model = looped_model("llama");
    expect_single_streams(model, false, four_slots(), false, "by sequence");
    expect_single_streams(model, true, four_slots(), false, "by loop");
}

TEST(ServedModels, EarlyExits) {
    const Model model = looped_model("llama");
    for (const ExitedKv kv : {ExitedKv::propagate, ExitedKv::catch_up, ExitedKv::share}) {
        SchedulerOptions options = four_slots();
        options.exit.kv = kv;
        expect_single_streams(model, true, options, true, std::string("replayed, ") + exited_kv_name(kv));
        options.exit.rule = ExitRule::probability;
        options.exit.thresholds = {0.9};
        expect_single_streams(model, true, options, false, std::string("confident, ") + exited_kv_name(kv));
        options.batching = BatchingPolicy::fixed;
        expect_single_streams(model, true, options, false, std::string("fixed, ") + exited_kv_name(kv));
    }
}

TEST(ServedModels, ExactModeIsTheFullModel) {
    const Model model = looped_model("llama");
    for (const int32_t loop : {1, 2}) {
        SchedulerOptions options = four_slots();
        options.draft = 3;
        options.draft_loop = loop;
        expect_single_streams(model, true, options, false, "drafts of loop " + std::to_string(loop));
    }
}

}  // namespace
}  // namespace refold
