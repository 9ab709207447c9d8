// What a model may cost. Every part of `fit` that asks whether a plan reaches the budget asks here.
#pragma once

#include <cstdint>
#include <optional>

#include "fit/decode_time.h"
#include "model/model.h"

namespace refold {

struct Budget {
    std::optional<uint64_t> file_bytes = {};
    std::optional<uint64_t> kv_bytes_per_token = {};  // all layers together, with a cache in F16
    std::optional<double> token_seconds = {};         // of a decoded token, predicted: decode_time.h
};

struct Spending {
    uint64_t file_bytes = 0, kv_bytes_per_token = 0;
    double token_seconds = 0;
};

bool within(const Spending& spending, const Budget& budget);

// Of a model as a file, which has at most so many bytes: file_bytes(). `made` may come from a dry run.
// Without `speeds` no seconds.
Spending spending_of(const Model& made, const TypeSpeeds* speeds);

}  // namespace refold
