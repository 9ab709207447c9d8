// Rounds the matrices of a model layer after layer, for the inputs that they have in the model that is
// quantized so far.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "compress/quantization/input_uses.h"
#include "compress/quantization/type_choice.h"
#include "compress/quantization/unquantized_grams.h"
#include "compress/refit/output_solver.h"

namespace refold {

class LayerRounding {
public:
    struct Settings {
        bool resolve = true;  // solve the maps that end attention and FFN before they are rounded
        bool bias = true;     // with their biases, where the architecture has some
        std::optional<double> ridge;
    };
    // What the arguments refer to must outlive this object.
    LayerRounding(const Model& model, const TypeChoice& choice, const Step& step, const Settings& settings);

    // Rounds all tensors of the choice whose inputs are known, tables first, and leaves those that become
    // float types. Results are kept in the step's work folder.
    void run();
    // The solved maps and biases of run(), with the right shapes and types but no values.
    void plan();

    const Model& model() const { return model_; }
    bool is_done(const std::string& tensor) const { return done_.contains(tensor); }

    struct SolvedMap {
        size_t layer;
        Slot slot;
        std::string free;                         // the part that was solved, as in FreeMap::what
        double ridge, error_before, error_after;  // mean squared errors on held-out rows
    };
    const std::vector<SolvedMap>& solved() const { return solved_; }
    const std::vector<Requantized>& requantized() const { return requantized_; }

private:
    using Place = UnquantizedGrams::Place;

    bool is_todo(const std::string& tensor) const;
    Place first_place(const std::vector<UsedRows>& rows) const;
    std::set<Place> places_of_later_uses() const;
    std::vector<std::string> tensors_at(Place place, const std::optional<FreeMap>& map) const;
    void put(const std::string& tensor, const Tensor& rounded);

    std::set<std::string> tables() const;
    void round_tables(const Model& unquantized);
    void round_table(const std::string& tensor, const std::vector<double>& of_head);

    void round_matrices(Place place, const std::vector<std::string>& tensors);
    LeastSquares inputs_at(Place place);
    Array rounded(const std::string& tensor, Place place, const LeastSquares& inputs) const;

    std::optional<FreeMap> map_to_solve(size_t layer, const OutputMap& module) const;
    DType type_of(const FreeMap& map) const;
    bool solves_bias(size_t layer, const OutputMap& module) const;
    void solve(size_t layer, const OutputMap& module, const FreeMap& map);
    void solve_gain(size_t layer, const OutputMap& module);
    void install(size_t layer, const OutputMap& module, const FreeMap& map, const Tensor& solved);

    Model model_;
    const TypeChoice& choice_;
    const Step& step_;
    Settings settings_;
    std::map<std::string, std::vector<UsedRows>> uses_;
    OutputSolver solver_;
    std::optional<UnquantizedGrams> grams_;  // of later uses
    std::set<std::string> done_;
    std::vector<Requantized> requantized_;
    std::vector<SolvedMap> solved_;
};

}  // namespace refold
