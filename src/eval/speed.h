// Speed of several engines on one machine. Every round runs all of them, so that drift of the machine affects
// all alike; results are medians and ratios of rounds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/single_sequence.h"
#include "eval/stock.h"

namespace refold {

struct SpeedOptions {
    int64_t prefill = 512;  // tokens
    int64_t decode = 128;   // tokens, one by one, after the prefill
    int rounds = 5;
    uint32_t seed = 0;  // of the random token ids
};

// An engine to time: appends tokens and computes the logits after the last one.
struct SpeedSubject {
    std::string name;
    std::function<void()> clear;
    std::function<void(std::span<const int32_t>)> append;
    std::function<void()> pause;  // stops its threads while other engines are timed
};
SpeedSubject subject(std::string name, SingleSequence& sequence);
SpeedSubject subject(std::string name, StockLlama& stock);

struct SpeedSeries {
    std::vector<double> tokens_per_s;  // per round
    double median() const;
};
struct SpeedResult {
    std::string name;
    SpeedSeries prefill, decode;
};

// One warm-up round, then `rounds` rounds whose order alternates.
std::vector<SpeedResult> measure_speed(std::vector<SpeedSubject> subjects, int64_t n_vocab,
                                       const SpeedOptions& options);

// Median over rounds of a's speed divided by b's in the same round.
double ratio(const SpeedSeries& a, const SpeedSeries& b);

// Peak resident set of this process in bytes, and the current one.
uint64_t peak_resident_bytes();
uint64_t resident_bytes();

}  // namespace refold
