#include "cli/calibration.h"

#include <filesystem>

#include "core/text.h"
#include "text/tokenizer.h"

namespace refold::cli {

Calibration load_calibration(const std::vector<std::string>& paths, const std::string& model,
                             const CalibrationOptions& options) {
    const Tokenizer tokenizer(model);
    std::vector<std::string> contents;
    std::vector<std::vector<int32_t>> tokens;
    for (const auto& path : paths) {
        contents.push_back(read_text_file(path));
        tokens.push_back(tokenizer.encode(contents.back(), tokenizer.adds_bos(), false));
    }
    std::vector<CalibrationText> texts;
    for (size_t t = 0; t < paths.size(); ++t)
        texts.push_back({std::filesystem::path(paths[t]).filename().string(), contents[t], tokens[t]});
    return make_calibration(texts, options);
}

}  // namespace refold::cli
