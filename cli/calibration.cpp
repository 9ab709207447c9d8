#include "cli/calibration.h"

#include <filesystem>

#include "core/text.h"
#include "text/tokenizer.h"

namespace refold::cli {

Calibration load_calibration(const std::string& path, const std::string& model,
                             const CalibrationOptions& options) {
    const std::string text = read_text_file(path);
    const Tokenizer tokenizer(model);
    const auto tokens = tokenizer.encode(text, tokenizer.adds_bos(), false);
    return make_calibration(std::filesystem::path(path).filename().string(), text, tokens, options);
}

}  // namespace refold::cli
