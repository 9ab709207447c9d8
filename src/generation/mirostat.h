// Mirostat (Basu et al. 2021, "Mirostat: A neural text decoding algorithm that directly controls
// perplexity"), as libllama computes it, but with the bound kept by the caller and the draw left to it: a
// draft that is refused leaves no trace, and sequences can share a sampler.
#pragma once

#include <llama.h>

#include <span>

namespace refold {

struct MirostatOptions {
    int version = 2;  // 1 or 2
    double tau = 5, eta = 0.1;
};

// The likeliest of `candidates`, at least one, which are moved to the front: version 2 leaves tokens out
// whose surprise is above `bound` bits; version 1 keeps as many as have a mean surprise of `bound` under
// Zipf's law, whose exponent it estimates from the 100 likeliest. `candidates` are not empty.
std::span<llama_token_data> mirostat_candidates(std::span<llama_token_data> candidates,
                                                const MirostatOptions& options, double bound);

// The bound after `token`, one of `left`, was drawn from the softmax of their logits.
double mirostat_bound(std::span<const llama_token_data> left, llama_token token,
                      const MirostatOptions& options, double bound);

}  // namespace refold
