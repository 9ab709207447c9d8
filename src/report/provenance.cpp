#include "report/provenance.h"

#include "core/json_lines.h"
#include "core/json_text.h"
#include "model/metadata_keys.h"
#include "report/json_access.h"

namespace refold {

using nlohmann::json;

json provenance_of(const Model& model) {
    const std::string text = model.metadata.string(kProvenanceKey, "");
    const json parsed = try_parse_json<nlohmann::ordered_json>(text);
    return parsed.is_object() ? parsed : json();
}

std::vector<FileHashes> origins_of(const json& provenance) {
    std::vector<FileHashes> out;
    for (const json* at = &member(provenance, "source"); at->is_object();
         at = &member(member(*at, "provenance"), "source")) {
        const json& hash = member(*at, "sha256");
        FileHashes& hashes = out.emplace_back();
        if (hash.is_string()) hashes[text_of(member(*at, "file"))] = text_of(hash);
        if (!hash.is_object()) continue;
        for (const auto& [name, value] : hash.items()) hashes[name] = text_of(value);
    }
    return out;
}

std::string recipes_of(const json& provenance) {
    std::string out;
    // A loop, because a file may nest this arbitrarily deep.
    for (const json* at = &provenance; at->is_object(); at = &member(member(*at, "source"), "provenance")) {
        const std::string own = text_of(member(*at, "recipe"));
        if (own.empty()) continue;
        out = out.empty() ? own : own + (own.ends_with('\n') ? "" : "\n") + "# and then\n" + out;
    }
    return out;
}

}  // namespace refold
