// Which files of a repository make up the model.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace refold::hub {

struct Choice {
    std::vector<std::string> files;  // in the order of need: weights last
    std::string gguf;                // the file to open; "" when the model is a folder of safetensors
    std::string problem;             // why there is no such model; then there are no files
};

// Of the files `names`, for `wanted` as in HubSpec::file_or_quant. `read` gives the text of one of them.
// Throws Error(usage) when several GGUF files match, Error(input) for an index that is none.
Choice choose_files(std::span<const std::string> names, const std::string& wanted,
                    const std::function<std::string(const std::string& path)>& read);

}  // namespace refold::hub
