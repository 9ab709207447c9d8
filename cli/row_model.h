// The model that a row of a paper's table measures.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/reproduction.h"
#include "papers/known_numbers.h"

namespace refold::cli {

// What the rows of a run have in common.
struct ReproductionRun {
    const PaperTable& table;
    const ReproductionOptions& options;
    std::string model;             // path of options.model; may be empty
    std::filesystem::path folder;  // for models that are made
    KnownNumbers numbers;
    std::vector<std::string> commands;          // for the reader
    std::set<std::filesystem::path> trainings;  // models that rows with PaperRow::kept have trained
    std::filesystem::path made;                 // the model of the last row that made one

    // As run_refold(), with the run's options.
    nlohmann::json refold(std::vector<std::string> words) const;
};

// A model of the papers or --model, or what the row's recipe makes of it, which is made when it is first
// needed. Rows with the same recipe, one after the other, share it, and rows that take models of one training
// (PaperRow::kept) the training.
class RowModel {
public:
    // Throws Error(usage) for a recipe that --model has too few layers for.
    RowModel(ReproductionRun& run, const PaperRow& row);

    const PaperRow& row() const { return row_; }
    // The row's, for the model that it runs on.
    const std::optional<Recipe>& recipe() const { return recipe_; }
    // The bare config.json or --model, for what follows from configurations.
    std::string configuration() const;
    // What is not there to make it; empty: nothing.
    std::string missing() const;

    // Removes the model of an earlier row. Throws what run_refold() throws; when it has failed once, always.
    void make();
    // What its numbers depend on.
    nlohmann::json identity() const;
    // The words with paths for {model}, {dense} and {texts}.
    std::vector<std::string> filled(const std::vector<std::string>& words) const;
    // Path for {model}.
    const std::string& path() const { return path_; }
    // Keeps a command for the reader, once, with that which makes the model.
    void show(const std::vector<std::string>& words);

private:
    // A model that `compress` makes.
    struct Making {
        std::string source, original;  // paths; the original may be empty
        Recipe recipe;
        std::filesystem::path output;
    };

    nlohmann::json identity_of(const Recipe& recipe) const;
    void plan_makings();
    void make(const Making& making);
    std::vector<std::string> words_of(const Making& making) const;
    void keep_command(const std::vector<std::string>& words);

    ReproductionRun& run_;
    const PaperRow& row_;
    std::optional<Recipe> recipe_;
    std::string source_;           // path; empty: it is not there
    std::vector<Making> makings_;  // in order
    std::string path_;             // of the last one's result; without any, of the source
    std::string failed_;
};

// Tells whether a file or folder is the one that was measured.
std::string file_identity(const std::string& path);

}  // namespace refold::cli
