#include "tasks/exit_answers.h"

#include <algorithm>
#include <utility>

#include "core/argmax.h"
#include "core/error.h"
#include "exit/exit_run.h"
#include "generation/prompt_queue.h"

namespace refold {
namespace {

using Tokens = std::span<const int32_t>;

int32_t opened(Engine& engine) {
    const auto sequence = engine.open(engine.capabilities().context);
    if (!sequence)
        fail(ErrorCode::internal, "tasks", "no room for {} tokens in the engine",
             engine.capabilities().context);
    return *sequence;
}

}  // namespace

ExitAnswers::ExitAnswers(Engine& engine, const ExitPolicy& policy)
    : engine_(engine), policy_(policy), counts_(engine.capabilities().loops) {
    check_exit_policy(policy, engine.capabilities().loops, engine.capabilities().exit_gate);
    if (sequences(policy) == 2) full_ = opened(engine);
}

ExitAnswers::~ExitAnswers() {
    if (sequence_ >= 0) engine_.close(sequence_);
    if (full_ >= 0) engine_.close(full_);
}

ExitCounts ExitAnswers::take_counts() { return std::exchange(counts_, ExitCounts(loops())); }

void ExitAnswers::begin(Tokens tokens) {
    const size_t keep = common_prefix(in_engine_, tokens);
    engine_.truncate(sequence_, static_cast<int64_t>(keep));
    run_with_exits(engine_, ExitedKv::catch_up,
                   {.sequence = sequence_,
                    .position = static_cast<int64_t>(keep),
                    .tokens = tokens.subspan(keep),
                    .first_exit = tokens.size() - keep},
                   [](size_t, int32_t, std::span<const float>) { return false; });
    in_engine_.assign(tokens.begin(), tokens.end());
    length_ = static_cast<int64_t>(tokens.size());
    if (full_ < 0) return;
    engine_.truncate(full_, 0);
    if (length_ > 0) engine_.copy(sequence_, full_, length_);
}

std::vector<LoopOutcome> ExitAnswers::append(Tokens tokens, Tokens targets) {
    const int32_t loops = engine_.capabilities().loops;
    const auto stride = static_cast<size_t>(loops);
    const auto run = [&](int32_t sequence, ExitedKv kv, ExitTrace& trace, auto&& exits) {
        trace = {loops, std::vector<LoopOutcome>(tokens.size() * stride)};
        run_with_exits(engine_, kv, {.sequence = sequence, .position = length_, .tokens = tokens},
                       [&](size_t t, int32_t loop, const LoopLogits& logits) {
                           LoopOutcome& o = trace.outcomes[t * stride + static_cast<size_t>(loop - 1)];
                           o = loop_outcome(policy_.rule, logits, targets[t]);
                           return loop < loops && exits(loop, o.confidence);
                       });
    };
    ExitTrace all, exited;
    run(full_ >= 0 ? full_ : sequence_, ExitedKv::catch_up, all, [](int32_t, double) { return false; });
    if (full_ >= 0)
        run(sequence_, policy_.kv, exited, [&](int32_t loop, double c) { return policy_.exits(loop, c); });
    const ExitTrace& trace = full_ >= 0 ? exited : all;
    const std::vector<int32_t> exits = exits_of(trace, policy_);
    std::vector<LoopOutcome> out;
    for (size_t t = 0; t < tokens.size(); ++t) {
        out.push_back(trace.at(t, exits[t]));
        counts_.add(exits[t], out.back().best == all.at(t, loops).best);
    }
    length_ += static_cast<int64_t>(tokens.size());
    return out;
}

void ExitAnswers::log_likelihoods(Requests requests, const Answered& answered) {
    if (sequence_ < 0) sequence_ = opened(engine_);
    std::vector<Tokens> inputs;
    for (const Request* r : requests) inputs.push_back(Tokens(r->tokens).first(r->tokens.size() - 1));
    for (const size_t index : PromptQueue::order(inputs)) {
        const Request& r = *requests[index];
        const auto scored = static_cast<size_t>(r.scored);
        const size_t first = r.tokens.size() - scored - 1;  // whose logits are wanted
        begin(inputs[index].first(first));
        const Tokens targets = Tokens(r.tokens).last(scored);
        const auto outcomes = append(inputs[index].subspan(first), targets);
        Likelihood likelihood;
        for (size_t t = 0; t < scored; ++t) {
            likelihood.log_likelihood -= outcomes[t].nll;
            likelihood.greedy = likelihood.greedy && outcomes[t].best == targets[t];
        }
        answered(index, likelihood);
    }
}

int64_t ExitAnswers::agreed(int32_t sequence, Tokens prompt, Tokens chosen) {
    const auto known = static_cast<int64_t>(prompt.size()) - 1;
    const int32_t full = full_ >= 0 ? full_ : sequence;
    engine_.truncate(full, full_ >= 0 ? 0 : known);
    if (full_ >= 0 && known > 0) engine_.copy(sequence, full_, known);
    int64_t agreed = 0;
    for (size_t t = 0; t < chosen.size(); ++t) {
        const int32_t input = t == 0 ? prompt.back() : chosen[t - 1];
        run_with_exits(engine_, ExitedKv::catch_up,
                       {.sequence = full, .position = known + static_cast<int64_t>(t), .tokens = {&input, 1}},
                       [&](size_t, int32_t loop, std::span<const float> logits) {
                           if (loop == loops() && static_cast<int32_t>(argmax(logits)) == chosen[t]) ++agreed;
                           return false;
                       });
    }
    return agreed;
}

void ExitAnswers::generate_until(const Tokenizer& tokenizer, Requests requests,
                                 const GenerationSettings& settings, const Generated& generated) {
    if (sequence_ >= 0) {  // the generator has its own, and there is no room for both
        engine_.close(std::exchange(sequence_, -1));
        in_engine_.clear();
    }
    GeneratorOptions options;
    options.sequences = 1;
    options.decoding.exit = policy_;
    options.decoding.prompt_may_exit = true;
    options.decode = task_decoder(tokenizer);
    Generator generator(engine_, tokenizer, options);
    const auto prompts = generation_requests(requests, settings);
    std::vector<uint64_t> before = generator.counts().exits;
    const auto end = [&](const GeneratorCallbacks::Ended& ended, const GenerationResult& result) {
        std::vector<int32_t> chosen = result.tokens;
        if (result.end_token) chosen.push_back(*result.end_token);
        ExitCounts counts(loops());
        for (size_t loop = 0; loop < before.size(); ++loop)
            counts.at_loop[loop] = static_cast<int64_t>(generator.counts().exits[loop] - before[loop]);
        before = generator.counts().exits;
        counts.agreed = agreed(ended.sequence, prompts[ended.request].prompt, chosen);
        counts_.add(counts);
        generated(ended.request, result.text);
    };
    generator.run(prompts, {.on_end = end});
}

}  // namespace refold
