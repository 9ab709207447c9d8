// A table or a figure of a paper as a file (papers/PAPER/NAME.yaml): what was published, and how each of its
// numbers is measured here. docs/papers.md describes the format.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compress/recipe.h"

namespace refold {

// How the numbers of a column come about.
enum class PaperMeasure {
    none,        // not measured: PaperColumn::why
    planned,     // from the configuration alone: planned_number()
    perplexity,  // of a text
    loss,        // mean negative log likelihood of the text's tokens
    task,        // a metric of an evaluation task
    mean,        // of other columns
    command,     // any number that a command of refold prints with --json
};

struct PaperColumn {
    std::string name;  // as printed, with its unit
    PaperMeasure measure = PaperMeasure::none;
    std::string why;               // none: the reason
    std::string number;            // planned: name of the number
    std::string text;              // perplexity, loss: file in the folder of texts
    std::string task, metric;      // task
    std::optional<int64_t> shots;  // task; else the task's own
    std::vector<std::string> of;   // mean: names of columns
    // command; {model} and {dense} stand for paths, {texts} for a folder
    std::vector<std::string> words;
    std::string value;  // command: JSON pointer into what it prints
    double scale = 1;   // not 0; what is measured times this is what was published
};

struct PaperRow {
    std::string name;              // as printed
    std::string model;             // name of a file of papers/models
    std::optional<Recipe> recipe;  // none: the model as it is
    // For models that --model names, in place of `recipe`.
    std::map<std::string, std::optional<Recipe>> recipes;
    // The model is number `kept` of those that the recipe's training keeps, with the steps after it: several
    // rows are points of one run. 0: the model at the end of all steps.
    int64_t kept = 0;
    double kv_budget = 1;                // part of the KV cache that H2O keeps (--kv-policy h2o)
    std::vector<std::string> options;    // of measuring commands
    std::string why;                     // reason why it cannot be run; else empty
    std::vector<std::string> published;  // per column, as printed; empty: nothing is
    // Per column: why the number that the paper prints cannot be right.
    std::map<std::string, std::string> misprints;

    const std::optional<Recipe>& recipe_for(const std::string& other_model) const;
};

struct PaperTable {
    std::string path;     // of the file
    std::string paper;    // "000": name of its folder
    std::string place;    // "Table 3"
    std::string section;  // where the text describes it
    std::string title;
    std::string needs;  // besides models, texts and tasks: "8 GPUs, 20 hours"
    std::string why;    // there is nothing to measure, and why; then it has neither columns nor rows
    std::vector<std::string> notes;
    std::vector<PaperColumn> columns;
    std::vector<PaperRow> rows;

    // All its numbers follow from configurations.
    bool planned() const;
    // Models of its rows, each once, in order.
    std::vector<std::string> models() const;
    bool trains() const;      // of a recipe: needs_training_text()
    bool calibrates() const;  // a recipe looks at activations
};

// A step trains, and names no text to train on.
bool needs_training_text(const Recipe& recipe);

// The number of the first step, from 1, that trains and keeps models on its way; 0: none does.
size_t keeping_step(const Recipe& recipe);

// Paths are looked for as data_file() does (core/data_files.h).
// Throws Error(io) when a file cannot be read, Error(input) when one is not of this form, Error(usage) for an
// unknown key, measure, method or option. Messages name file and line.
PaperTable read_paper_table(const std::string& path);

// All tables of a folder of papers, ordered by paper, kind and number ("table-2" before "table-10").
// Throws Error(input) when there are none.
std::vector<PaperTable> read_paper_tables(const std::string& folder);

// The path of the bare config.json of a model that a row names: MODELS/NAME.json beside the papers' folders.
std::string paper_model_config(const PaperTable& table, const std::string& model);

}  // namespace refold
