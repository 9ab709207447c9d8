// LLM-Pruner: "LLM-Pruner: On the Structural Pruning of Large Language Models" (Ma, Fang, Wang 2023).
#pragma once

#include "compress/method.h"

namespace refold {

extern const Method kLlmPruner;

}  // namespace refold
