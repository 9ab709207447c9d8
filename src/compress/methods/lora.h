// LoRA to be trained: "LoRA: Low-Rank Adaptation of Large Language Models" (Hu et al. 2022).
#pragma once

#include "compress/method.h"

namespace refold {

extern const Method kLora;

}  // namespace refold
