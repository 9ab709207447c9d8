// Continuous batching: requests of all clients share steps of one batch engine. With an engine by depth the
// unit of work is one loop of one row (continuous depth-wise batching, Recursive Transformers, section 3.7),
// else it is the whole model.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/batch.h"
#include "exit/exit_policy.h"
#include "text/sampler.h"
#include "text/tokenizer.h"

namespace refold {

struct GenerationRequest {
    std::vector<int32_t> prompt;  // at least one token
    int64_t max_tokens = 16;      // 0: only the prompt is scored
    SamplingOptions sampling;
    std::vector<std::string> stop;  // texts that end the generation; not part of it
    bool ignore_eos = false;
    int logprobs = -1;                     // of every token generated, with so many likeliest ones; -1: none
    bool prompt_logprobs = false;          // the same of the prompt's tokens
    std::chrono::milliseconds timeout{0};  // from submission to the end; 0: the scheduler's
    // Replayed instead of the policy, for measuring: loop after which generated token i is chosen; all loops
    // for the first one, whatever it says, and behind its end. As GenerationEvent::exits says them.
    std::vector<int32_t> exits;
};

struct TokenLogprob {
    int32_t token = 0;
    double logprob = 0;
    std::vector<std::pair<int32_t, double>> top;  // the likeliest tokens, best first
};

enum class FinishReason { stop, length, cancelled, timeout, shutdown, error };

struct GenerationEvent {
    // Text that is final: whole UTF-8 characters, nothing that may still become a stop text. May be empty.
    std::string text;
    std::vector<int32_t> tokens;         // newly chosen
    std::vector<TokenLogprob> logprobs;  // of them, where asked for
    std::vector<int32_t> exits;          // loops that they were chosen after
    // Where asked for, before or with the first token generated: of the prompt's second token, the third, ...
    std::vector<TokenLogprob> prompt;
    std::optional<FinishReason> finished;  // last event
    std::string error;                     // what went wrong, for FinishReason::error
};

// A client's end of a request. Dropping it cancels the request.
class Generation {
public:
    virtual ~Generation() = default;
    // Waits for the next event, which is all that happened since the one before; nothing when none came in
    // time, or at once behind the last event.
    virtual std::optional<GenerationEvent> next(std::chrono::milliseconds timeout) = 0;
    virtual void cancel() = 0;
};

enum class BatchingPolicy {
    continuous,  // a sequence that ends gives its place to the next request at once
    // "Vanilla": a batch is filled (or 50 ms old), all its prompts are run, then all its sequences token by
    // token, those that exit early waiting for the others; the next batch when all of them have ended.
    fixed,
};

struct SchedulerOptions {
    int64_t slots = 8;   // sequences at a time
    int64_t queue = 64;  // requests that wait, beside those that have a slot; more are refused
    // Prompt tokens of one step beside the rows that generate: bounds the time between two tokens.
    int64_t prefill_rows = 256;
    std::chrono::milliseconds timeout{600000};
    ExitPolicy exit = {};
    // Early loops draft up to so many tokens (fewer while few are accepted), all loops verify them: the
    // output is the full model's, token for token (greedy) or in distribution (sampled; speculative sampling,
    // Leviathan et al. 2023). 0: off.
    int64_t draft = 0;
    int32_t draft_loop = 1;  // loop after which drafts are taken
    BatchingPolicy batching = BatchingPolicy::continuous;
};

// Upper bounds of buckets in seconds and the observations in each, the last one above all bounds.
struct Histogram {
    std::vector<double> bounds;
    std::vector<uint64_t> counts;
    double sum = 0;
};

struct SchedulerStatus {
    int64_t running = 0, waiting = 0, slots = 0;
    int64_t kv_tokens = 0, kv_tokens_used = 0;
    uint64_t prompt_tokens = 0, generated_tokens = 0;
    uint64_t steps = 0, rows = 0;       // of the engine
    int64_t last_rows = 0;              // of the latest step
    std::vector<int64_t> last_rows_at;  // the same by loop
    std::map<FinishReason, uint64_t> finished;
    uint64_t refused = 0;
    uint64_t starved = 0;  // steps with a free slot while requests waited: for room in the KV cache, mostly
    std::vector<uint64_t> exits;  // tokens by the loop they were chosen after, loop 1 at [0]
    uint64_t drafted = 0, accepted = 0;
    Histogram first_token, between_tokens;  // seconds
};

class Scheduler {
public:
    // Takes both for as long as it lives and starts one thread, the only one that runs the engine. Throws
    // Error(usage) for options out of range or that the engine's stages do not allow.
    Scheduler(BatchEngine& engine, const Tokenizer& tokenizer, const SchedulerOptions& options);
    // As shutdown(0).
    ~Scheduler();
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;

    // Null when the queue is full or the scheduler is shutting down. Throws Error(input) for a prompt that is
    // empty, has ids outside the vocabulary or does not fit the context (or the KV cache) together with at
    // least one token, where any is wanted; Error(usage) for options out of range. Any thread. What is
    // generated ends where the context does.
    std::unique_ptr<Generation> submit(GenerationRequest request);
    SchedulerStatus status() const;
    // Refuses new requests and waits for the others; those that run or wait after `grace` are ended.
    void shutdown(std::chrono::milliseconds grace);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace refold
