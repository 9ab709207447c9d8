#include "model/families/common/stock.h"

#include "core/error.h"

namespace refold {

void fail_stock(const Model& model, const std::string& what) {
    fail(ErrorCode::unsupported, "export", "stock llama.cpp cannot express {} of this {} model", what,
         model.family->name);
}

GgufMetadata renamed_metadata(const GgufMetadata& metadata, const std::string& from, const std::string& to) {
    GgufMetadata out;
    for (const auto& [key, value] : metadata.entries()) {
        if (key.starts_with("refold.checkpoint")) continue;
        out.set(key.starts_with(from + ".") ? to + key.substr(from.size()) : key, value);
    }
    out.set("general.architecture", GgufValue::string(to));
    return out;
}

}  // namespace refold
