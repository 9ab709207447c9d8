// Applies a recipe, or one method, to a model: shared by `compress` and `train`.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/calibration_device.h"
#include "cli/options.h"
#include "cli/report_file.h"

namespace refold::cli {

struct CompressionArguments {
    std::string model, original, recipe, method;
    std::vector<std::string> settings;
    std::vector<std::string> data;
    std::vector<std::string> calibration;
    int64_t tokens = 0;
    int threads = 0;
    CalibrationDevice where;
    bool dry_run = false;
    OutputOptions output;
    ReportOptions report;
    ReportFile report_file;
};

// Declares all options except the method's name.
struct CompressionOptions {
    CLI::Option *output, *recipe, *settings;
};
CompressionOptions add_compression_options(CLI::App& app, CompressionArguments& arguments);

// With several processes (train/launch.h) only the one of rank 0 prints and writes.
void run_compression(const CompressionArguments& arguments);

}  // namespace refold::cli
