// Neighbouring key/value heads become one, their mean: the baseline of head sharing that shrinks the KV
// cache. Ainslie et al., "GQA", section 2.1; "Head-wise Shareable Attention for Large Language Models",
// appendix G.1.
#pragma once

#include "compress/method.h"

namespace refold {

extern const Method kGqa;

}  // namespace refold
