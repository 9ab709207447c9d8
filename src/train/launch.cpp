#include "train/launch.h"

#include "core/process_variables.h"
#include "core/progress.h"
#include "engine/torch/plugin.h"

namespace refold {

void join_group() {
    if (world_size() == 1) return;
    auto* const make = reinterpret_cast<GroupFunction*>(torch_plugin::find(kGroupSymbol));
    set_group(std::unique_ptr<Group>(make()));
    if (!group().first()) set_progress_style(ProgressStyle::none);
}

}  // namespace refold
