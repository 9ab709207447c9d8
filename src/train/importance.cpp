#include "train/importance.h"

#include "engine/torch/plugin.h"

namespace refold {

Importance taylor_importance(const ImportanceRequest& request) {
    return torch_plugin::ask<Importance>(kImportanceSymbol, request);
}

}  // namespace refold
