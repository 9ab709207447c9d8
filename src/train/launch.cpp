#include "train/launch.h"

#include "engine/torch/plugin.h"

namespace refold {

void join_group() {
    if (!several_processes()) return;
    auto* const make = reinterpret_cast<GroupFunction*>(torch_plugin::find(kGroupSymbol));
    set_group(std::unique_ptr<Group>(make()));
}

}  // namespace refold
