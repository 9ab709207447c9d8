// A fixture's checkpoint under other names.
#pragma once

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "model/families/edited_config.h"

namespace refold {

// Writes config.json and model.safetensors into a folder. `rename` gives a tensor's new name, nothing for one
// that is left out. `more` is added.
inline void write_renamed(
    const std::string& fixture, const std::string& folder, const nlohmann::json& config,
    const std::function<std::string(const std::string&)>& rename,
    const std::function<void(const std::string&, SafetensorsView&)>& edit = [](const auto&, auto&) {},
    std::vector<SafetensorsOutput> more = {}) {
    std::ofstream(folder + "/config.json") << config.dump();
    const SafetensorsFile file = read_safetensors(fixture_path(fixture) + "/model.safetensors");
    std::vector<SafetensorsOutput> outputs = std::move(more);
    for (auto [name, view] : file.tensors) {
        const std::string other = rename(name);
        if (other.empty()) continue;
        edit(name, view);
        outputs.push_back(
            {other, view.dtype, view.shape, [data = view.data](const auto& sink) { sink(data); }});
    }
    write_safetensors(folder + "/model.safetensors", false, outputs, {}, [](uint64_t, const std::string&) {});
}

}  // namespace refold
