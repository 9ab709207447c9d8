#include "tasks/exit_answers.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "exit/exit_run.h"
#include "tasks/prompt_reader.h"
#include "tasks/python_text.h"

namespace refold {
namespace {

using Tokens = std::span<const int32_t>;

int32_t opened(BatchEngine& engine) {
    const auto sequence = engine.open(engine.context());
    if (!sequence)
        fail(ErrorCode::internal, "tasks", "no room for {} tokens in the batch engine", engine.context());
    return *sequence;
}

}  // namespace

ExitAnswers::ExitAnswers(BatchEngine& engine, const ExitPolicy& policy)
    : engine_(engine), policy_(policy), counts_(engine.stages()) {
    check_exit_policy(policy, engine.stages());
    sequence_ = opened(engine);
    if (sequences(policy) == 2) full_ = opened(engine);
}

ExitAnswers::~ExitAnswers() {
    engine_.close(sequence_);
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
    const int32_t loops = engine_.stages();
    const auto stride = static_cast<size_t>(loops);
    const auto run = [&](int32_t sequence, ExitedKv kv, ExitTrace& trace, auto&& exits) {
        trace = {loops, std::vector<LoopOutcome>(tokens.size() * stride)};
        run_with_exits(engine_, kv, {.sequence = sequence, .position = length_, .tokens = tokens},
                       [&](size_t t, int32_t loop, std::span<const float> logits) {
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
    std::vector<Tokens> inputs;
    for (const Request* r : requests) inputs.push_back(Tokens(r->tokens).first(r->tokens.size() - 1));
    for (const size_t index : PromptReader::order(inputs)) {
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

void ExitAnswers::generate_until(const Tokenizer& tokenizer, Requests requests,
                                 const GenerationSettings& settings, const Generated& generated) {
    std::vector<Tokens> prompts;
    for (const Request* r : requests) prompts.emplace_back(r->tokens);
    for (const size_t index : PromptReader::order(prompts)) {
        begin(prompts[index].first(prompts[index].size() - 1));
        std::vector<int32_t> tokens;
        std::string text;
        int32_t last = prompts[index].back();
        while (static_cast<int64_t>(tokens.size()) < settings.max_tokens) {
            last = append({&last, 1}, {&last, 1}).front().best;
            if (tokenizer.is_end_of_generation(last)) break;
            tokens.push_back(last);
            text = valid_utf8(tokenizer.decode(tokens, false));
            if (before_stops(text, settings.until).size() < text.size()) break;
        }
        generated(index, before_stops(std::move(text), settings.until));
    }
}

}  // namespace refold
