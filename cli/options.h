// Options that several verbs share, each declared once.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/single_sequence.h"
#include "exit/exit_policy.h"
#include "refold/generation.h"

namespace refold::cli {

struct ReportOptions {
    bool json = false;
    bool quiet = false;
};
// --json, --quiet
void add_report_options(CLI::App& app, ReportOptions& options);

// MODEL, in any form that resolve_model() takes.
CLI::Option* add_model(CLI::App& app, std::string& model);

struct OutputOptions {
    std::string path;
    bool overwrite = false;
};
// -o, --overwrite
CLI::Option* add_output(CLI::App& app, OutputOptions& options, const char* description);
// Throws Error when `output` cannot be written or is the file `input`. Call it before long work.
void check_output(const OutputOptions& output, const std::string& input);

// --threads, for the whole process
void add_threads(CLI::App& app, int& threads);
// --threads, --context, --f32, --precision, --kv, --device, --gpu-layers, --rpc-anywhere, --rpc-timeout.
// `context_default` describes options.context when it is 0.
void add_engine_options(CLI::App& app, EngineOptions& options, const char* context_default);
// --kv-policy, --kv-budget, --kv-recent, --kv-sinks
void add_eviction_options(CLI::App& app, EvictionOptions& options);
// --kv-budget
CLI::Option* add_kv_budget(CLI::App& app, double& budget);
// --engine
CLI::Option* add_engine_kind(CLI::App& app, EngineKind& kind);
// An engine for one sequence of the model at `path`.
std::unique_ptr<Engine> load_engine(const std::string& path, const EngineOptions& options);
// One sequence of the model at `path`.
std::unique_ptr<SingleSequence> make_single_sequence(const std::string& path, const EngineOptions& options);
// One sequence of a model, which may be released.
std::unique_ptr<SingleSequence> make_single_sequence(const Model& model, const EngineOptions& options);

// --exit, --exit-loop, --exit-threshold, --exit-kv; check_exit_policy() checks whether they fit each other
// and the model. With `oracle`, `--exit oracle` is allowed and sets it; the rule is then none. Returns
// --exit.
CLI::Option* add_exit_options(CLI::App& app, ExitPolicy& policy, bool* oracle = nullptr);

struct DraftOptions {
    int64_t lookup = 0;
    std::string model;
    int64_t tokens = 8;
    bool always = false;
};
// --lookup, --draft-model, --draft-tokens, --draft-always. Returns the first two, which exclude each other.
std::vector<CLI::Option*> add_draft_options(CLI::App& app, DraftOptions& options);

// --max-tokens, --stop, formats of the output (--json-schema, ...) and everything that decides the choice of
// tokens: --temperature, --top-k, ..., --seed. Their ranges are for check_generation().
void add_generation_options(CLI::App& app, GenerationOptions& options, const char* max_tokens);

// --NAME 1,2,3
CLI::Option* add_token_ids(CLI::App& app, const char* name, std::vector<int32_t>& ids,
                           const char* description);

// Validator: a number of at least `minimum`.
CLI::Validator at_least(double minimum);

// Throws Error(input) when `text`, given as `name`, is not UTF-8.
void require_utf8(const std::string& text, const char* name);

}  // namespace refold::cli
