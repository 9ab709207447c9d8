// The scheduler's counts.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "refold/generation.h"

namespace refold {

struct Histogram {
    std::vector<double> bounds;    // upper bounds of the buckets, in seconds or tokens
    std::vector<uint64_t> counts;  // [bounds + 1]: the last bucket is above all bounds
    double sum = 0;                // of all that was observed
};

Histogram make_histogram(std::vector<double> bounds);
void observe(Histogram& histogram, double value);

struct SchedulerStatus {
    int64_t running = 0, waiting = 0, slots = 0;
    int64_t kv_tokens = 0, kv_tokens_used = 0;
    uint64_t prompt_tokens = 0, generated_tokens = 0;
    uint64_t known_tokens = 0;          // of prompts: what the KV cache had of earlier sequences
    uint64_t steps = 0, rows = 0;       // of the engine
    int64_t last_rows = 0;              // of the latest step
    std::vector<int64_t> last_rows_at;  // the same by loop
    std::map<FinishReason, uint64_t> finished;
    uint64_t refused = 0;
    uint64_t starved = 0;  // steps with a free slot while requests waited, mostly for room in the KV cache
    std::vector<uint64_t> exits;  // tokens by the loop that they were chosen after, loop 1 at [0]
    uint64_t drafted = 0, accepted = 0;
    Histogram first_token, between_tokens;  // of sequences, in seconds, as the rest but lengths
    Histogram queue;                        // from submission to the slot
    Histogram prefill, decode;              // from the slot to the first token, from there to the end
    Histogram in_slot, whole;               // from the slot, or from submission, to the end
    Histogram prompt_length, generated_length, most_length;  // tokens; the last: as allowed
};

// Nothing counted yet.
SchedulerStatus new_status();

// Of an encoder.
struct EncoderStatus {
    int64_t requests = 0;  // that are there
    uint64_t texts = 0, tokens = 0, refused = 0;
};

}  // namespace refold
