// Collects models and results of runs into one comparison.
#pragma once

#include <string>
#include <vector>

#include "report/report.h"
#include "report/results.h"

namespace refold {

struct NamedModel {
    std::string path;  // a file, or a Hugging Face directory
    std::string name;  // empty: derived from the path
};

struct Runs {
    std::vector<NamedModel> models;
    std::vector<RunResult> results;
    std::vector<std::string> skipped;  // JSON files in directories that are not results
    std::string output{};              // file to be written, which is skipped in directories
};

// Adds the model, JSON result, JSON report, metrics.jsonl of a training run, or directory of these at `path`.
// Other files in a directory are skipped. `name` names a model. Throws Error(io), Error(input) for any other
// file and for a directory without any of these.
void add_runs(const std::string& path, const std::string& name, Runs& runs);

// Describes a model by its file, topology and metadata, without running it. Reads the whole file for its
// hash.
Variant describe_model(const Model& model, const NamedModel& named);

struct CollectOptions {
    std::string title{};     // empty: derived from the names
    std::string version{};   // of refold
    std::string original{};  // path of the original model; empty: the model that each variant was made from
    bool reconstruction = true;  // compare weights with those of the original
};

// One variant per model, and per model that occurs only in results. A result belongs to the model with the
// hashes that it names; without hashes, to the model with its path or file name. Originals come first. Throws
// as load_model().
Comparison collect(const Runs& runs, const CollectOptions& options);

}  // namespace refold
