#include "model/hf/readable_config.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/error.h"
#include "core/json_text.h"
#include "model/hf/config_classes.h"
#include "model/hf/rotation_fields.h"

namespace refold {
namespace {

using nlohmann::json;

// transformers has defaults of these too: a file without them is broken.
constexpr std::array<std::string_view, 6> kSizes = {"vocab_size",        "hidden_size",       "n_embd",
                                                    "intermediate_size", "num_hidden_layers", "n_layer"};

struct ClassFields {
    json defaults = json::object();
    std::set<std::string> not_null;
    std::vector<std::pair<std::string, std::string>> aliases;
};

ClassFields fields_of(const std::string& model_type) {
    const auto classes = config_classes();
    const auto found =
        std::ranges::find_if(classes, [&](const ConfigClass& c) { return model_type == c.model_type; });
    if (found == classes.end())
        fail(ErrorCode::internal, "config.json", "no fields are known of model_type '{}'", model_type);
    ClassFields out;
    const json fields = parse_json(found->fields, "checkpoint", "the known fields");
    for (const auto& [name, value] : fields.items()) {
        if (name.starts_with('@')) {
            out.aliases.emplace_back(name.substr(1), value);
        } else if (name.ends_with('?')) {
            out.defaults[name.substr(0, name.size() - 1)] = value;
        } else {
            out.defaults[name] = value;
            out.not_null.insert(name);
        }
    }
    return out;
}

}  // namespace

ReadableConfig readable_config(json config, bool is_part) {
    const ClassFields of_class = fields_of(config.at("model_type"));
    for (const auto& [other, name] : of_class.aliases) {
        const auto found = config.find(other);
        if (found == config.end()) continue;
        if (config.contains(name) && config[name] != *found)
            fail(ErrorCode::input, "config.json", "fields '{}' ({}) and '{}' ({}) mean the same and differ",
                 name, config[name].dump(), other, found->dump());
        const json value = *found;
        config.erase(other);
        config[name] = value;
    }
    unite_rotation_fields(config, of_class.defaults);
    ReadableConfig out{config, config, {}, of_class.not_null};
    for (const auto& [name, value] : of_class.defaults.items()) {
        out.known.insert(name);
        if (!out.fields.contains(name) && (is_part || std::ranges::find(kSizes, name) == kSizes.end()))
            out.fields[name] = value;
    }
    return out;
}

}  // namespace refold
