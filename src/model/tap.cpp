#include "model/tap.h"

#include <array>

namespace refold {

const char* tap_name(Tap tap) {
    constexpr std::array kNames = {
        "layer_input",   "attn_input",     "q",           "k",        "v",         "probabilities",
        "attn_inner",    "attn_projected", "attn_output", "residual", "ffn_input", "ffn_inner",
        "ffn_projected", "ffn_output",     "logits"};
    return kNames.at(static_cast<size_t>(tap));
}

}  // namespace refold
