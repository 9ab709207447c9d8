// Models of a fixture's config.json alone, edited.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "core/temp_folder.h"
#include "core/text.h"
#include "model/load.h"
#include "model/stock.h"

namespace refold {

using EditConfig = std::function<void(nlohmann::json&)>;

inline std::string fixture_path(const std::string& name) {
    return std::string(REFOLD_FIXTURES) + "/hf/" + name;
}

inline nlohmann::json fixture_config(const std::string& name) {
    return nlohmann::json::parse(read_text_file(fixture_path(name) + "/config.json"));
}

inline Model with_config(const std::string& fixture, const EditConfig& edit) {
    const TempFolder folder;
    nlohmann::json config = fixture_config(fixture);
    edit(config);
    std::ofstream(folder / "config.json") << config.dump();
    return load_model(folder / "config.json");
}

// The message of the error, whose code must be `code`.
inline std::string config_error(const std::string& fixture, const EditConfig& edit,
                                ErrorCode code = ErrorCode::unsupported) {
    try {
        with_config(fixture, edit);
    } catch (const Error& error) {
        return error.code() == code ? error.what() : std::string("another code: ") + error.what();
    }
    return "no error";
}

// The message with which stock llama.cpp is said not to express a model.
inline std::string stock_error(const Model& model) {
    try {
        for_stock(model);
    } catch (const Error& error) {
        return error.what();
    }
    return "no error";
}

}  // namespace refold
