// Positions of a slot's rows in the tensor of a Hugging Face checkpoint, for reading and writing.
#pragma once

#include "model/model.h"

namespace refold {

// A matrix has `out` rows of `in` elements, a vector one row for each element.
struct SlotRows {
    int64_t rows = 0, width = 0;
};
SlotRows slot_rows(Slot slot, const ModelConfig& config);

// The row of the checkpoint's tensor (before transposition) that holds row `row` of the slot's weight.
int64_t hf_row(const SlotDescription& slot, const ModelConfig& config, int64_t row);
// Shape of the checkpoint's tensor, slowest dimension first; Q, K and V together where they are one.
std::vector<int64_t> hf_shape(const SlotDescription& slot, const ModelConfig& config);
// Shape of the part of such a tensor that one expert has, without transposition: rows and columns.
SlotRows expert_rows(const SlotDescription& slot, const ModelConfig& config);
// The names that a checkpoint may have for a slot's tensor, preferred ones first. `names` and `prefix` are
// the descriptions': "|" separates alternatives, "@" is the prefix of the base model or nothing. Old files
// say gamma and beta.
std::vector<std::string> hf_names(const char* names, const char* prefix, size_t layer);
// The names of a slot's tensor, as SlotDescription::hf. A RoBERTa classifier has its own pooler, whose name
// is the second one.
std::string classifier_names(const SlotDescription& slot, bool is_classifier);

// Whether the checkpoint may have the slot in a layer, one of `layers` that it stores.
bool is_in_layer(const Family& family, Slot slot, size_t layer, size_t layers);

// Whether the checkpoint has a tensor for each head, expert or stream ("[]" in its name), and the names for
// one of them.
bool is_by_block(const char* names);
std::string names_of_block(const char* names, int64_t block);

}  // namespace refold
