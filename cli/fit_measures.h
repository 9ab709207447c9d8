// What files lose against their original on a held-out text, measured once per file.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/perplexity.h"
#include "report/frontier.h"

namespace refold::cli {

class FitMeasures {
public:
    // Reads the text. `original`: path of the model. Measured figures are kept in the file `kept` for other
    // runs on the same model, text and windows.
    FitMeasures(const PerplexityArguments& arguments, int threads, const std::string& original,
                std::string kept);

    const DataFile& data() const { return data_; }
    // "wiki.test.txt, windows of 1024 tokens"
    std::string text() const;
    // Throws Error(usage) when the model at `path` reads the text as other tokens.
    void check(const std::string& path) const;
    // Of the file at `path`, and with it the original's perplexity.
    FrontierFigures measure(const std::string& path);
    // Known after measure().
    double original_perplexity() const { return values_.at("original").at("perplexity"); }
    double original_standard_error() const { return values_.at("original").at("standard_error"); }

private:
    PerplexityInput input(const std::string& path) const;

    PerplexityArguments arguments_;
    EngineOptions engine_;
    std::string content_, kept_;
    DataFile data_;
    PerplexityInput original_;
    nlohmann::ordered_json values_;  // key, original, files: by SHA-256
};

}  // namespace refold::cli
