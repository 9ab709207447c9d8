// Comparison of several variants of one model (dense, 10 % shared, 30 % shared, ...): as a table for
// terminals, as JSON and as a self-contained HTML page.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "report/topology_picture.h"

namespace refold {

struct PerplexityFigure {
    double value = 0;
    double standard_error = 0;
    int64_t tokens_scored = 0;
    std::string protocol;  // text, windows, context: what the number means
};

struct SpeedFigure {
    double tokens_per_s = 0;
    double baseline_tokens_per_s = 0;  // stock llama.cpp
    double ratio = 0;                  // median over rounds, so not exactly the quotient of the two medians
};

// What was not measured stays empty and is shown so.
struct Variant {
    std::string name;
    std::string recipe;  // YAML; empty for the model as it came
    std::string file;    // name of its file
    std::string sha256;  // of its file

    uint64_t parameters = 0;  // stored
    uint64_t file_bytes = 0;
    uint64_t kv_bytes_per_token = 0;
    std::optional<uint64_t> resident_weight_bytes;  // weights as the engine holds them
    std::optional<uint64_t> resident_set_bytes;     // of a process that runs this variant alone

    std::optional<PerplexityFigure> perplexity;
    std::optional<SpeedFigure> prefill, decode;

    std::string prompt, generated;
    std::optional<TopologyMap> topology;
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
    std::string sha256;   // of that file
    std::string version;  // of refold
    std::string date;
    Machine machine;
    std::vector<std::string> commands;  // that make these figures again
    std::vector<std::string> notes;     // what a reader must know about the figures
    std::vector<Variant> variants;      // the first is what the others are compared with
};

// Variants as columns, measures as rows; the change against the first variant in brackets. Notes below.
std::string to_table(const Comparison& comparison);

// Long snake_case keys; null where something was not measured or is not finite.
std::string to_json(const Comparison& comparison);

// One page that needs nothing else: no network, no scripts, light and dark as the reader's system asks, from
// phone to desktop width. Every text is escaped: model names, recipes and generated texts are not trusted.
std::string to_html(const Comparison& comparison);

}  // namespace refold
