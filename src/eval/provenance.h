// The provenance in every result: all that is needed to reproduce it and to tell it from others.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "model/model.h"

namespace refold {

struct DataFile {
    std::string path;
    std::string sha256;  // of its bytes
    uint64_t bytes = 0;
};
DataFile data_file(const std::string& path, std::string_view content);

struct Provenance {
    std::string model_name;  // as given by the user
    std::string model_path;
    const Model* model = nullptr;
    EngineOptions options;  // of the engine
    int threads = 0;        // in use
    std::vector<DataFile> data = {};
};

// {refold, llama_cpp, ggml, date (UTC), command, cpu, threads, engine {...}, model {name, path, sha256,
// files, architecture, types, compression}, data {path, sha256, bytes}}. `compression` is what `refold
// compress` recorded in the model (recipe, source, calibration), null for other models. `data` is a list if
// there are several files. Hashes the model's files; see remembered_sha256().
nlohmann::ordered_json to_json(const Provenance& provenance);

// The name of the text with this SHA-256 if the model, or a model that it was made from, was calibrated on
// it. A result on such a text measures how well it was learned.
std::optional<std::string> calibrated_on(const Model& model, const std::string& sha256);
// The same as a warning for the user.
std::optional<std::string> calibration_warning(const Model& model, const DataFile& data);

std::string cpu_name();

}  // namespace refold
