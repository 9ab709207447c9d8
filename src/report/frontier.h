// Files of one model at several sizes: what each size loses, and what type every matrix has.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"
#include "report/figure.h"

namespace refold {

// The types of a model's matrices.
struct TypeMap {
    struct Cell {
        double bits = 0;   // per weight; NaN: the layer has no such matrix
        std::string type;  // "Q4_K", of several tensors "Q4_K, Q5_0"
    };
    std::vector<Slot> slots;                    // of layers, in the order of the forward pass
    std::vector<std::vector<Cell>> layers;      // by layer and slot
    std::vector<std::pair<Slot, Cell>> tables;  // embedding and output
};
TypeMap type_map(const Model& model);

// What a file loses on a text.
struct FrontierFigures {
    double kl_divergence = 0;                   // of the next token from the original model's, nats
    std::optional<double> kl_low{}, kl_high{};  // 95 % interval
    double top1_agreement = 0;
    double perplexity = 0, standard_error = 0;
};

struct FrontierFile {
    std::string name, path;
    uint64_t file_bytes = 0;
    double bits_per_weight = 0;  // of all stored numbers
    bool made = true;            // else one that it is compared with
    FrontierFigures figures;
    std::optional<double> predicted_divergence{}, calibration_divergence{};
    TypeMap types;
    std::string recipe;  // YAML; empty for a file that was not made
};

struct Frontier {
    std::string model;  // name
    std::string version, date;
    uint64_t file_bytes = 0;                    // of the original
    double perplexity = 0, standard_error = 0;  // of the original
    std::string text;                           // name of the held-out text, and its protocol
    std::vector<FrontierFile> files;
    std::vector<std::string> commands, notes;
};

// Divergence and perplexity against size.
std::vector<Figure> frontier_figures(const Frontier& frontier);
// A heat map of bits per weight for every file that was made, with the same colors.
std::vector<Figure> type_figures(const Frontier& frontier);
// A page with both, a table and the recipes; see page.h. Names and recipes are escaped.
std::string frontier_html(const Frontier& frontier);
// The same numbers: {model, file_bytes, perplexity, ..., files: [{name, file_bytes, kl_divergence, ...,
// types: {layers: [{slot: type}], tables: {slot: type}}}]}.
nlohmann::ordered_json frontier_json(const Frontier& frontier);

}  // namespace refold
