// Options that several verbs share, each declared once.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "exit/exit_policy.h"
#include "text/sampler.h"

namespace refold::cli {

struct ReportOptions {
    bool json = false;
    bool quiet = false;
};
// --json, --quiet
void add_report_options(CLI::App& app, ReportOptions& options);

// MODEL: what resolve_model() takes.
CLI::Option* add_model(CLI::App& app, std::string& model);

struct OutputOptions {
    std::string path;
    bool overwrite = false;
};
// -o, --overwrite
CLI::Option* add_output(CLI::App& app, OutputOptions& options, const char* description);
// Throws Error when `output` cannot be written or is the file `input`: to be called before long work.
void check_output(const OutputOptions& output, const std::string& input);

// --threads, for everything in this process
void add_threads(CLI::App& app, int& threads);
// --threads, --context, --f32, --kv. `context_default` describes options.context when it is 0.
void add_engine_options(CLI::App& app, EngineOptions& options, const char* context_default);
// --kv-policy, --kv-budget, --kv-recent, --kv-sinks
void add_eviction_options(CLI::App& app, EvictionOptions& options);
// --kv-budget
CLI::Option* add_kv_budget(CLI::App& app, double& budget);
// --engine, --device
void add_engine_kind(CLI::App& app, EngineOptions& options);
// Reads the model at `path` into an engine and forgets the file.
std::unique_ptr<Engine> make_engine(const std::string& path, const EngineOptions& options);
// An engine with the model's weights.
std::unique_ptr<Engine> make_engine(const Model& model, const EngineOptions& options);

// --exit, --exit-loop, --exit-threshold, --exit-kv; whether they fit each other and the model is for
// check_exit_policy(). `oracle`, where given, is set by `--exit oracle`, with which the rule is none. Returns
// --exit.
CLI::Option* add_exit_options(CLI::App& app, ExitPolicy& policy, bool* oracle = nullptr);

// --temperature, --top-k, --top-p, --seed
void add_sampling_options(CLI::App& app, SamplingOptions& options);

// --NAME 1,2,3
CLI::Option* add_token_ids(CLI::App& app, const char* name, std::vector<int32_t>& ids,
                           const char* description);

// Validator: a number that is not below `minimum`.
CLI::Validator at_least(double minimum);

// Throws Error(input) when `text`, given as `name`, is not UTF-8.
void require_utf8(const std::string& text, const char* name);

}  // namespace refold::cli
