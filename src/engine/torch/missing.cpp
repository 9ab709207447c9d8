// In builds without libtorch.
#include "core/error.h"
#include "engine/backend.h"

namespace refold {

bool has_torch_engine() { return false; }

std::unique_ptr<Backend> make_torch_backend(const Model&, const EngineOptions&) {
    fail(ErrorCode::unsupported, "torch engine",
         "this build has no torch engine: install libtorch (Debian: libtorch-dev) and configure with "
         "-DREFOLD_TRAIN=ON");
}

}  // namespace refold
