// Helpers for families that describe themselves to stock llama.cpp.
#pragma once

#include <initializer_list>
#include <string>

#include "model/model.h"

namespace refold {

// The same metadata for another architecture, without what is kept for the way back to the checkpoint: the
// tensors no longer are the checkpoint's.
GgufMetadata renamed_metadata(const GgufMetadata& metadata, const std::string& from, const std::string& to);

// Throws Error(unsupported): stock llama.cpp cannot express `what`.
[[noreturn]] void fail_stock(const Model& model, const std::string& what);

// The same where a layer has one of these slots.
void refuse_in_stock(const Model& model, std::initializer_list<Slot> slots);
// ... where its rotation is dynamic, or has factors (Llama 3's) that llama.cpp does not read for this family.
void refuse_rotation_in_stock(const Model& model, bool reads_factors);
// ... where its heads together are not as wide as the residual stream.
void refuse_head_width_in_stock(const Model& model);

// The output as a tensor of its own where it is the embedding: llama.cpp does not tie them in all families.
Model with_own_output(const Model& model);
// Gains of heads (attn.q_norm_all, attn.k_norm_all) as rows of heads.
Model with_gains_as_rows(const Model& model);

}  // namespace refold
