// Answers to requests where tokens exit early: the scored tokens of a continuation, and generated tokens. All
// tokens of the prompt but the last run all loops.
#pragma once

#include <vector>

#include "engine/engine.h"
#include "exit/exit_policy.h"
#include "exit/exit_trace.h"
#include "tasks/generate.h"
#include "tasks/loglikelihood.h"

namespace refold {

class ExitAnswers {
public:
    // The engine needs room for sequences() of its context. Throws as check_exit_policy().
    ExitAnswers(Engine& engine, const ExitPolicy& policy);
    ~ExitAnswers();
    ExitAnswers(const ExitAnswers&) = delete;
    ExitAnswers& operator=(const ExitAnswers&) = delete;
    // The full model needs a second one where the keys and values of exited tokens are not its own.
    static int64_t sequences(const ExitPolicy& policy) { return policy.kv == ExitedKv::catch_up ? 1 : 2; }

    // As the functions of these names.
    void log_likelihoods(Requests requests, const Answered& answered);
    void generate_until(const Tokenizer& tokenizer, Requests requests, const GenerationSettings& settings,
                        const Generated& generated);

    // Of the tokens since the last call.
    ExitCounts take_counts();
    int32_t loops() const { return engine_.capabilities().loops; }

private:
    // Makes `tokens` the sequence; those that are there already stay.
    void begin(std::span<const int32_t> tokens);
    // Appends tokens that may exit. Returns for each the outcome of its target in the logits after its
    // loop.
    std::vector<LoopOutcome> append(std::span<const int32_t> tokens, std::span<const int32_t> targets);
    // How many of `chosen`, which followed `prompt` in `sequence`, all loops would have chosen too.
    int64_t agreed(int32_t sequence, std::span<const int32_t> prompt, std::span<const int32_t> chosen);

    Engine& engine_;
    const ExitPolicy policy_;
    int32_t sequence_ = -1, full_ = -1;  // open in the engine
    std::vector<int32_t> in_engine_;     // tokens of sequence_ that have run all loops
    int64_t length_ = 0;
    ExitCounts counts_;
};

}  // namespace refold
