// The weights that differ from loop to loop, for steps whose rows are at different loops: each row takes the
// LoRA, norm or bias of its own loop.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "engine/ggml/device_terms.h"
#include "engine/ggml/looped_block.h"
#include "engine/ggml/row_terms.h"

namespace refold {

class LoopWeights {
public:
    // `f32`: as EngineOptions::f32. Quantized LoRA is kept in BF16, or in Q8_0 where row_panels::supports()
    // it.
    LoopWeights(const LoopedBlock& model, bool f32, int threads);
    LoopWeights(const LoopWeights&) = delete;
    LoopWeights& operator=(const LoopWeights&) = delete;

    // LoRA and biases of matrices; the sets are the loops.
    RowTerms& terms() { return terms_; }

    // In what follows, `loops` I32 [tokens] is the loop of each row (token) of x.

    // Whether the vector of this slot differs between loops.
    bool differs(size_t layer, Slot slot) const { return vectors_.contains({layer, slot}); }
    // x times, or plus, the vector [n] of every row's loop, in place. x [n, tokens] or [n, heads, tokens].
    ggml_tensor* scale(ggml_context* context, size_t layer, Slot slot, ggml_tensor* x, ggml_tensor* loops);
    ggml_tensor* add(ggml_context* context, size_t layer, Slot slot, ggml_tensor* x, ggml_tensor* loops);

    uint64_t bytes() const { return terms_.bytes() + vector_bytes_; }

private:
    RowTerms terms_;
    std::map<BlockSlot, std::vector<std::vector<float>>> vectors_;  // by loop
    uint64_t vector_bytes_ = 0;
};

// The same for steps on a device.
void put_loops(const LoopedBlock& model, DeviceTerms& terms);

}  // namespace refold
