// Comparison of several variants of one model (dense, 10 % shared, 30 % shared, ...) as a terminal table,
// Markdown, JSON, and a self-contained HTML page.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "report/reconstruction.h"
#include "report/topology_picture.h"

namespace refold {

struct PerplexityFigure {
    double value = 0;
    std::optional<double> standard_error{};
    int64_t tokens_scored = 0;
    std::string protocol;               // text, windows, context; only equal protocols are comparable
    std::string metric = "perplexity";  // or "word perplexity", "bits per byte", ...
    bool operator==(const PerplexityFigure&) const = default;
};

// One metric of one task.
struct TaskFigure {
    std::string task, metric;  // "hellaswag", "acc_norm"
    double value = 0;
    std::optional<double> standard_error{};
    std::string protocol{};  // "5 shots, 100 items"; only equal protocols are comparable
    bool higher_is_better = true;
    bool operator==(const TaskFigure&) const = default;
    bool fraction() const;  // an accuracy or similar, printed in percent
};

struct SpeedFigure {
    double tokens_per_s = 0;
    std::optional<double> baseline_tokens_per_s{};
    std::optional<double> ratio{};  // median over rounds, so not exactly the quotient of the two medians
    std::string baseline = "stock llama.cpp";
};

// Files of a model and their SHA-256.
using FileHashes = std::map<std::string, std::string>;

// One metric of a training run ("loss") over its steps; NaN for missing values.
struct TrainingCurve {
    std::string name;
    std::vector<double> steps, values;
};
struct TrainingRun {
    std::string name;  // "step-2" of the recipe; may be empty
    std::vector<TrainingCurve> curves;
};

// The error of a truncated SVD of a weight matrix with as many parameters as the factors that replace the
// matrix, as recorded by the step that made the factors.
struct SvdError {
    size_t layer = 0;
    Slot slot{};
    int64_t rank = 0;
    double error = 0;  // relative Frobenius norm
};

// One variant. Fields that were not measured are empty.
struct Variant {
    std::string name;
    std::string recipe;  // YAML; empty for the original model
    std::string path;    // of its file or directory, to identify the model; not printed
    std::string file;    // file name without folder
    FileHashes hashes;

    std::optional<uint64_t> parameters;  // stored
    // Stored parameters beyond those of the size at which it is compared (compress: "equal_size").
    std::optional<double> beyond_equal_size;
    std::optional<uint64_t> file_bytes;
    std::optional<uint64_t> kv_bytes_per_token;
    std::optional<uint64_t> resident_weight_bytes;  // weights as the engine holds them
    std::optional<uint64_t> resident_set_bytes;     // of a process that runs this variant alone

    std::vector<PerplexityFigure> perplexities;
    std::vector<TaskFigure> tasks;
    std::optional<SpeedFigure> prefill, decode;

    std::string prompt, generated;
    std::vector<std::string> steps;  // summary of each step of the recipe
    std::optional<TopologyMap> topology;
    std::optional<Reconstruction> reconstruction;  // against the model it was made from
    std::vector<SvdError> svd_errors;
    std::vector<std::string> analyses;  // JSON of refold analyze, for analysis_figures()
    std::vector<TrainingRun> training;
    std::vector<FileHashes> origins;  // models it was made from, nearest first
};

struct Machine {
    std::string cpu;
    int threads = 0;
    uint64_t memory_bytes = 0;
};

struct Comparison {
    std::string title;
    std::string model;    // name
    std::string source;   // its file
    FileHashes hashes;    // of the source
    std::string version;  // of refold
    std::string date;
    Machine machine;
    std::vector<std::string> commands;  // commands that reproduce the figures
    std::vector<std::string> notes;     // remarks that a reader of the figures needs
    std::vector<Variant> variants;      // the first is the reference for the others
};

// Variants as columns, measures as rows, and the change from the first variant in parentheses, followed by
// the notes and the generated texts.
std::string to_table(const Comparison& comparison);

// The same in Markdown, with the commands and files to reproduce it.
std::string to_markdown(const Comparison& comparison);
// Only the table of to_markdown().
std::string markdown_table(const Comparison& comparison);

// JSON with snake_case keys; null for values that were not measured or are not finite. parse_run() reads it
// back (see saved_report.h).
std::string to_json(const Comparison& comparison);

// A self-contained page without network access or scripts, light or dark by the reader's system setting, for
// phones to desktops. All text is escaped: model names, recipes and generated texts are untrusted.
std::string to_html(const Comparison& comparison);

// Whether one set of hashes contains the other, ignoring file names (some tools include a directory's
// config.json, some do not). False when one is empty.
bool same_files(const FileHashes& a, const FileHashes& b);

// Format of Comparison::date: "2025-01-02 13:45 UTC".
inline constexpr const char* kDateFormat = "%Y-%m-%d %H:%M UTC";

}  // namespace refold
