// The recipe that goes beside a model.
#pragma once

#include <optional>
#include <string>

#include "compress/recipe.h"
#include "core/files.h"
#include "model/model.h"

namespace refold::cli {

// Appears right before its model, so a run that was killed between the two leaves the recipe alone: the same
// run accepts it.
class RecipeFile {
public:
    // `read_from`: the file that the recipe was read from; it stays if it is `path`. Throws Error(usage) if
    // `path` has another recipe and `overwrite` is false; else as AtomicFile.
    RecipeFile(std::string path, const Recipe& recipe, bool overwrite, const std::string& read_from = "");

    // Writes the model and the recipe; leaves no new recipe when the model cannot be written.
    void save_with(const Model& model, const std::string& output, bool overwrite);
    const std::string& path() const { return path_; }

private:
    std::string path_;
    std::optional<AtomicFile> file_;  // nothing: it is there
    bool replaces_ = false;
};

}  // namespace refold::cli
