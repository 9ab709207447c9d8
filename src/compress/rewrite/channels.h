// Leaving out channels of FFNs.
#pragma once

#include <vector>

#include "compress/rewrite/cut.h"

namespace refold {

// Layers with the same FFN, which loses channels for all of them.
using TiedLayers = std::vector<size_t>;

// The FFNs of `layers` in the matrices `slots`. Throws Error(unsupported) on behalf of `method` for factors,
// which have no channels, and for an FFN that is shared in part.
std::vector<TiedLayers> ffns_of(const Model& model, const std::vector<Slot>& slots,
                                const std::vector<size_t>& layers, const char* method);

// The FFN of these layers keeps the channels `kept` (ascending); without any, it is removed.
void keep_channels(Model& model, const TiedLayers& tied, const std::vector<int64_t>& kept,
                   std::vector<Requantized>& requantized);

// Parameters of one channel of the layer's FFN.
int64_t channel_parameters(const Model& model, size_t layer);

}  // namespace refold
