// vLLM's names of what its dashboards show.
#pragma once

#include <string>
#include <vector>

#include "serve/metrics.h"

namespace refold {

std::string vllm_metrics(const std::vector<ModelStatus>& models);

}  // namespace refold
