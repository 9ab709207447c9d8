// The table of methods. A new method adds its header and one entry.
#include <array>

#include "compress/method.h"
#include "compress/methods/direct_share.h"

namespace refold {

static constexpr std::array<const Method*, 1> kMethods = {&kDirectShare};

std::span<const Method* const> methods() { return kMethods; }

}  // namespace refold
