// Several processes, as torchrun and others start them, found without libtorch.
#pragma once

#include "core/group.h"

namespace refold {

// Connects to the other processes, if any, and sets group(); only the first one shows progress then. Throws
// as Processes does, and Error(unsupported) in a build without libtorch.
void join_group();
// The symbol of the group in the torch engine's library.
inline constexpr const char* kGroupSymbol = "refold_torch_group";
using GroupFunction = Group*();

}  // namespace refold
