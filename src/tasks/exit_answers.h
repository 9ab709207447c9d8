// Answers to requests where tokens exit early: the scored tokens of a continuation and generated ones. Tokens
// of the prompt before them run all loops.
#pragma once

#include <vector>

#include "engine/batch.h"
#include "exit/exit_policy.h"
#include "exit/exit_trace.h"
#include "tasks/generate.h"
#include "tasks/loglikelihood.h"

namespace refold {

class ExitAnswers {
public:
    // The engine needs room for sequences() of its context. Throws as check_exit_policy().
    ExitAnswers(BatchEngine& engine, const ExitPolicy& policy);
    ~ExitAnswers();
    ExitAnswers(const ExitAnswers&) = delete;
    ExitAnswers& operator=(const ExitAnswers&) = delete;
    // The full model runs beside where keys and values of exited tokens are not its own.
    static int64_t sequences(const ExitPolicy& policy) { return policy.kv == ExitedKv::catch_up ? 1 : 2; }

    // As the functions of these names.
    void log_likelihoods(Requests requests, const Answered& answered);
    void generate_until(const Tokenizer& tokenizer, Requests requests, const GenerationSettings& settings,
                        const Generated& generated);

    // Of the tokens since the last call.
    ExitCounts take_counts();
    int32_t loops() const { return engine_.stages(); }

private:
    // Makes `tokens` the sequence; those that are there already stay.
    void begin(std::span<const int32_t> tokens);
    // Appends tokens that may exit, and gives what each says of `targets` behind its loop.
    std::vector<LoopOutcome> append(std::span<const int32_t> tokens, std::span<const int32_t> targets);

    BatchEngine& engine_;
    const ExitPolicy policy_;
    int32_t sequence_ = -1, full_ = -1;
    std::vector<int32_t> in_engine_;  // tokens that have run all loops
    int64_t length_ = 0;
    ExitCounts counts_;
};

}  // namespace refold
