// Chooses the files of a repository that make up the model.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace refold::hub {

struct Choice {
    std::vector<std::string> files;  // in download order: weights last
    std::string gguf;                // the file to open; "" when the model is a folder of safetensors
    std::string problem;             // why there is no such model (`files` is then empty)
};

// Chooses among the files `names` for `wanted`, which is as in HubSpec::file_or_quant. `read` returns the
// text of a file. Throws Error(usage) when several GGUF files match, Error(input) for a malformed index.
Choice choose_files(std::span<const std::string> names, const std::string& wanted,
                    const std::function<std::string(const std::string& path)>& read);

}  // namespace refold::hub
