// Models and results of runs, put together as one comparison.
#pragma once

#include <string>
#include <vector>

#include "report/report.h"
#include "report/results.h"

namespace refold {

struct NamedModel {
    std::string path;  // a file, or a Hugging Face directory
    std::string name;  // empty: made of the path
};

struct Runs {
    std::vector<NamedModel> models;
    std::vector<RunResult> results;
    std::vector<std::string> skipped;  // JSON files of directories that are no results
    std::string output{};              // file that will be written: not read as a part of a directory
};

// Adds what is at `path`: a model, a JSON result, a report as JSON, the metrics.jsonl of a training run, or a
// directory of those; in a directory, what is none of these is passed over. `name` is for a model. Throws
// Error(io), Error(input) for a file that is neither, and for a directory without any.
void add_runs(const std::string& path, const std::string& name, Runs& runs);

// What file, topology and metadata of a model tell, without running it. Reads the whole file for its hash.
Variant describe_model(const Model& model, const NamedModel& named);

struct CollectOptions {
    std::string title{};     // empty: made of the names
    std::string version{};   // of refold
    std::string original{};  // path of the model that others are compared with; empty: the one they came from
    bool reconstruction = true;  // compare weights with those of the original
};

// One variant per model and per model that only results tell about. A result belongs to the model whose files
// have the hash that it names; where it names none, to the one with its path, or with its file's name.
// Originals come first. Throws what load_model() does.
Comparison collect(const Runs& runs, const CollectOptions& options);

}  // namespace refold
