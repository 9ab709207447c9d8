#include "cli/recipe_file.h"

#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/text.h"
#include "model/save.h"

namespace refold::cli {

RecipeFile::RecipeFile(std::string path, const Recipe& recipe, bool overwrite, const std::string& read_from)
    : path_(std::move(path)) {
    std::error_code none;
    if (std::filesystem::equivalent(path_, read_from, none)) return;
    const std::string text = to_yaml(recipe);
    if (!overwrite && std::filesystem::is_regular_file(path_)) {
        if (read_text_file(path_) == text) return;
        fail(ErrorCode::usage, "output",
             "'{}' exists and is another recipe - choose another output, or pass --overwrite", path_);
    }
    replaces_ = std::filesystem::exists(path_);
    file_.emplace(path_, overwrite);
    file_->write(text);
}

void RecipeFile::save_with(const Model& model, const std::string& output, bool overwrite) {
    const bool before = file_ && !replaces_;
    if (before) file_->commit();
    try {
        save_model(model, output, overwrite);
    } catch (...) {
        std::error_code ignored;
        if (before) std::filesystem::remove(path_, ignored);
        throw;
    }
    if (file_ && replaces_) file_->commit();
}

}  // namespace refold::cli
