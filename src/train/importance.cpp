#include "train/importance.h"

#include "engine/torch/plugin.h"

namespace refold {

Importance taylor_importance(const ImportanceRequest& request) {
    auto* const function = reinterpret_cast<ImportanceFunction*>(torch_plugin::find(kImportanceSymbol));
    Importance result;
    function(request, result);
    return result;
}

}  // namespace refold
