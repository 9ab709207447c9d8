// Perplexity of a text, for several verbs.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/engine.h"
#include "eval/perplexity.h"
#include "eval/provenance.h"
#include "text/tokenizer.h"

namespace refold::cli {

constexpr const char* kContextDefault = "1024; gptq: 2048; llama.cpp: 512; lm-eval: the model's";

struct PerplexityArguments {
    std::string text;                         // file
    PerplexityOptions options{.context = 0};  // context: the engine's
};
// --text, --protocol, --stride, --max-windows; returns --text.
CLI::Option* add_perplexity_options(CLI::App& app, PerplexityArguments& arguments);

// A model, and the windows of the text as its tokens.
struct PerplexityInput {
    std::string path;
    Model model;
    PerplexityPlan plan;
    EngineOptions engine;

    Provenance provenance(const std::string& name, int threads, const DataFile& data) const {
        return {name, path, &model, engine, threads, {data}};
    }
};
// `context`: tokens of a window; 0: the protocol's. Throws as plan_perplexity().
PerplexityInput perplexity_input(const PerplexityArguments& arguments, const EngineOptions& engine,
                                 const std::string& path, const std::string& text, int64_t context = 0);

// "protocol" and its parameters.
nlohmann::ordered_json protocol_json(const PerplexityPlan& plan);
// The figures.
nlohmann::ordered_json perplexity_json(const PerplexityResult& result);
// "perplexity 21.1929 +- 1.0089"
std::string perplexity_line(const PerplexityResult& result);

}  // namespace refold::cli
