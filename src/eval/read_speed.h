// How fast this machine reads memory: the limit of decoding, which reads all weights for each token.
#pragma once

#include <cstdint>

#include "model/model.h"

namespace refold {

// Bytes per second that `threads` threads together read from 256 MiB, more than caches hold: the best of
// three passes after one to warm up.
double read_speed(int threads);

// Bytes of stored tensors that decoding one token reads at least: each once, without a table that only
// embeds.
uint64_t bytes_read_per_token(const Model& model);

}  // namespace refold
