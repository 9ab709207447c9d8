// Report formats, and the option --report of verbs that have results.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/collect.h"

namespace refold::cli {

enum class ReportFormat { html, markdown, json };
// The format called `name`; if that is empty, by the extension of `path`. Throws Error(usage).
ReportFormat report_format(const std::string& name, const std::string& path);
std::string report_text(const Comparison& comparison, ReportFormat format);

// MODEL as the user gave it, and its path. A catalogue or hub name becomes the model's name, a path does not.
NamedModel named_model(const std::string& argument, const std::string& path);

// --report FILE, and --overwrite if the verb has none.
class ReportFile {
public:
    void declare(CLI::App& app);
    // Throws Error when the report cannot be written. Call it before long work.
    void check() const;
    // Does nothing without --report. `result`: the verb's --json output.
    void write(const std::vector<NamedModel>& models, const nlohmann::ordered_json& result) const;

private:
    std::string path_;
    const CLI::Option* overwrite_ = nullptr;
};

}  // namespace refold::cli
