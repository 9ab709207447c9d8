// Where the rows of a slot's weight lie in a Hugging Face checkpoint's tensor, for reading and for writing.
#pragma once

#include "model/model.h"

namespace refold {

// A matrix has `out` rows of `in` elements; a vector has as many rows of one element as it is long.
struct SlotRows {
    int64_t rows = 0, width = 0;
};
SlotRows slot_rows(Slot slot, const ModelConfig& config);

// Row of the checkpoint's tensor (before transposition) that is row `row` of the slot's weight.
int64_t hf_row(const SlotDescription& slot, const ModelConfig& config, int64_t row);
// Shape of the checkpoint's tensor, slowest dimension first; Q, K and V together where they are one.
std::vector<int64_t> hf_shape(const SlotDescription& slot, const ModelConfig& config);
// The names a checkpoint may give to a slot's tensor, best first, from its description: "|" separates
// alternatives, "@" is the prefix of the base model or nothing, and old files have gamma and beta.
std::vector<std::string> hf_names(const char* names, const char* prefix, size_t position);

}  // namespace refold
