// The plugin functions of builds without libtorch.
#include "core/error.h"
#include "engine/engines.h"
#include "engine/torch/plugin.h"

namespace refold {

bool has_torch_engine() { return false; }

void* torch_plugin::find(const char*) {
    fail(ErrorCode::unsupported, "torch engine",
         "this build has no torch engine: install libtorch (Debian: libtorch-dev) and configure with "
         "-DREFOLD_TRAIN=ON");
}

std::unique_ptr<Engine> make_torch_engine(const Model&, const EngineOptions&) {
    torch_plugin::find(torch_plugin::kMakeSymbol);
    return nullptr;
}

}  // namespace refold
