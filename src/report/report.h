// Comparison of several variants of one model (dense, 10 % shared, 30 % shared, ...): as a table for
// terminals, as Markdown, as JSON and as a self-contained HTML page.
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
    std::string protocol;               // text, windows, context: only equal ones may be compared
    std::string metric = "perplexity";  // or "word perplexity", "bits per byte", ...
    bool operator==(const PerplexityFigure&) const = default;
};

// A metric of a task.
struct TaskFigure {
    std::string task, metric;  // "hellaswag", "acc_norm"
    double value = 0;
    std::optional<double> standard_error{};
    std::string protocol{};  // "5 shots, 100 items": only equal ones may be compared
    bool higher_is_better = true;
    bool operator==(const TaskFigure&) const = default;
    bool fraction() const;  // an accuracy or the like, shown in per cent
};

struct SpeedFigure {
    double tokens_per_s = 0;
    std::optional<double> baseline_tokens_per_s{};
    std::optional<double> ratio{};  // median over rounds, so not exactly the quotient of the two medians
    std::string baseline = "stock llama.cpp";
};

// Files of a model and their SHA-256.
using FileHashes = std::map<std::string, std::string>;

// What a training run told about itself, by name ("loss"); NaN where a value was none.
struct TrainingCurve {
    std::string name;
    std::vector<double> steps, values;
};
struct TrainingRun {
    std::string name;  // "step-2" of the recipe; may be empty
    std::vector<TrainingCurve> curves;
};

// A weight matrix approximated by an SVD that holds as many numbers as the factors in its place: what the
// step that made the factors says of it.
struct SvdError {
    size_t position = 0;
    Slot slot{};
    int64_t rank = 0;
    double error = 0;  // relative Frobenius norm
};

// What was not measured stays empty and is shown so.
struct Variant {
    std::string name;
    std::string recipe;  // YAML; empty for the model as it came
    std::string path;    // of its file or directory; for finding it again, not shown
    std::string file;    // its name without folder
    FileHashes hashes;

    std::optional<uint64_t> parameters;  // stored
    std::optional<uint64_t> file_bytes;
    std::optional<uint64_t> kv_bytes_per_token;
    std::optional<uint64_t> resident_weight_bytes;  // weights as the engine holds them
    std::optional<uint64_t> resident_set_bytes;     // of a process that runs this variant alone

    std::vector<PerplexityFigure> perplexities;
    std::vector<TaskFigure> tasks;
    std::optional<SpeedFigure> prefill, decode;

    std::string prompt, generated;
    std::vector<std::string> steps;  // what each step of the recipe did, for people
    std::optional<TopologyMap> topology;
    std::optional<Reconstruction> reconstruction;  // against the model that it was made of
    std::vector<SvdError> svd_errors;
    std::vector<std::string> analyses;  // JSON of refold analyze, for analysis_figures()
    std::vector<TrainingRun> training;
    std::vector<FileHashes> origins;  // what it was made of, nearest first
};

struct Machine {
    std::string cpu;
    int threads = 0;
    uint64_t memory_bytes = 0;
};

struct Comparison {
    std::string title;
    std::string model;    // name
    std::string source;   // file it came from
    FileHashes hashes;    // of that file
    std::string version;  // of refold
    std::string date;
    Machine machine;
    std::vector<std::string> commands;  // that make these figures again
    std::vector<std::string> notes;     // what a reader must know about the figures
    std::vector<Variant> variants;      // the first is what the others are compared with
};

// Variants as columns, measures as rows; the change against the first variant in brackets. Notes below.
std::string to_table(const Comparison& comparison);

// The same in Markdown, with what is needed to reproduce it.
std::string to_markdown(const Comparison& comparison);
// Of that the table alone.
std::string markdown_table(const Comparison& comparison);

// Long snake_case keys; null where something was not measured or is not finite. parse_run() reads it again
// (saved_report.h).
std::string to_json(const Comparison& comparison);

// One page that needs nothing else: no network, no scripts, light and dark as the reader's system asks, from
// phone to desktop width. Every text is escaped: model names, recipes and generated texts are not trusted.
std::string to_html(const Comparison& comparison);

// Whether one set of files holds the other, whatever their names; never when one of them is empty. (Some
// count a directory's config.json, some do not.)
bool same_files(const FileHashes& a, const FileHashes& b);

// Of a report's `date`: "2025-01-02 13:45 UTC"
inline constexpr const char* kDateFormat = "%Y-%m-%d %H:%M UTC";

}  // namespace refold
