#include "compress/quantization/layer_rounding.h"

#include <algorithm>

#include "compress/method/lazy.h"
#include "compress/rounding/gptq_rounding.h"
#include "core/progress.h"
#include "io/finite.h"
#include "model/materialize.h"
#include "model/quantized.h"

namespace refold {
namespace {

using Doubles = std::vector<double>;

constexpr UnquantizedGrams::Place kHead = {kWholeModel, Tap::layer_input};

constexpr Computation kTable{"quantize table", 5}, kInputMatrices{"quantize matrices", 2},
    kOutput{"quantize output map", 3}, kGain{"quantize gain", 1};

UnquantizedGrams::Place place_of(const InputUse& use) { return {use.layer, *input_tap(use.slot)}; }

// Checked here, where the tensor is known: rounding works on parts of rows.
std::vector<float> weights_of(const Model& model, const std::string& tensor, DType type) {
    std::vector<float> weights = floats_of(model, tensor);
    naming_tensor("quantize", tensor,
                  [&] { check_holds(type, weights, model.tensor(tensor).row_elements()); });
    return weights;
}

bool is_before(const UnquantizedGrams::Place& a, const UnquantizedGrams::Place& b) {
    const auto order = [](Tap tap) { return std::find(kInputTaps.begin(), kInputTaps.end(), tap); };
    return a.first != b.first ? a.first < b.first : order(a.second) < order(b.second);
}

bool reads(const Model& model, Slot slot, const std::string& tensor) {
    const auto found = model.topology.globals.find(slot);
    if (found == model.topology.globals.end()) return false;
    if (const auto* rows = std::get_if<RowParts>(&found->second))
        return std::ranges::find(rows->parts, tensor) != rows->parts.end();
    return found->second == Expression(Dense{tensor});
}

// Of a part of a table's rows: the number of rows that come before it.
std::optional<int64_t> rows_before(const Model& model, const std::string& tensor) {
    for (const auto& [slot, expression] : model.topology.globals) {
        const auto* rows = std::get_if<RowParts>(&expression);
        if (rows == nullptr || std::ranges::find(rows->parts, tensor) == rows->parts.end()) continue;
        int64_t out = 0;
        for (const std::string& part : rows->parts) {
            if (part == tensor) return out;
            out += model.tensor(part).rows();
        }
    }
    return std::nullopt;
}

// All rows; those that nothing uses with the inputs of the rows beside them.
std::vector<UsedRows> covering(std::vector<UsedRows> used, int64_t rows) {
    used.front().count += used.front().first;
    used.front().first = 0;
    for (size_t i = 0; i + 1 < used.size(); ++i) used[i].count = used[i + 1].first - used[i].first;
    used.back().count = rows - used.back().first;
    return used;
}

}  // namespace

LayerRounding::LayerRounding(const Model& model, const TypeChoice& choice, const Step& step,
                             const Settings& settings)
    : model_(model),
      choice_(choice),
      step_(step),
      settings_(settings),
      uses_(input_uses(model)),
      solver_(step, settings.ridge) {}

void LayerRounding::run() {
    const Model unquantized = model_;
    const Measurement on{*step_.work, *step_.calibration, step_.identity_before, step_.threads};
    grams_.emplace(unquantized, on, places_of_later_uses());
    round_tables(unquantized);
    const size_t layers = model_.topology.layers.size();
    Progress progress("quantize", layers, "layers");
    for (size_t p = 0; p < layers; ++p) {
        for (const Tap tap : kInputTaps) {
            const OutputMap* module = output_map_after(tap);
            const auto map = module == nullptr ? std::nullopt : map_to_solve(p, *module);
            round_matrices({p, tap}, tensors_at({p, tap}, map));
            if (map) solve(p, *module, *map);
        }
        solver_.done(p);
        progress.advance(1);
    }
    progress.finish();
    grams_.reset();
}

void LayerRounding::plan() {
    for (size_t p = 0; p < model_.topology.layers.size(); ++p) {
        for (const OutputMap& module : kOutputMaps) {
            const auto map = map_to_solve(p, module);
            if (!map) continue;
            install(p, module, *map, lazy::constant(type_of(*map), {map->inputs, map->outputs}, 0));
            if (solves_bias(p, module))
                install_vector(model_, p, module.bias, lazy::constant(DType::F32, {map->outputs}, 0));
        }
    }
}

bool LayerRounding::is_todo(const std::string& tensor) const {
    const auto found = choice_.types.find(tensor);
    return found != choice_.types.end() && !is_float(found->second) && !done_.contains(tensor);
}

// Where inputs meet the tensor first: there it is rounded.
LayerRounding::Place LayerRounding::first_place(const std::vector<UsedRows>& rows) const {
    Place first = place_of(rows.front().uses.front());
    for (const UsedRows& part : rows) {
        if (const Place place = place_of(part.uses.front()); is_before(place, first)) first = place;
    }
    return first;
}

std::set<LayerRounding::Place> LayerRounding::places_of_later_uses() const {
    std::set<Place> out;
    for (const auto& [tensor, rows] : uses_) {
        if (!is_todo(tensor)) continue;
        const Place first = first_place(rows);
        for (const UsedRows& part : rows) {
            for (const InputUse& use : part.uses)
                if (place_of(use) != first) out.insert(place_of(use));
        }
    }
    return out;
}

// Tensors that meet these inputs first, without those of a map that is solved.
std::vector<std::string> LayerRounding::tensors_at(Place place, const std::optional<FreeMap>& map) const {
    std::set<std::string> out;
    for (const auto& [slot, expression] : model_.topology.layers[place.first]) {
        if (properties(slot).kind != SlotKind::matrix || input_tap(slot) != place.second) continue;
        for (const std::string& tensor : tensors_of(expression)) {
            const auto rows = uses_.find(tensor);
            const bool is_solved =
                map && std::find(map->tensors.begin(), map->tensors.end(), tensor) != map->tensors.end();
            if (is_todo(tensor) && !is_solved && rows != uses_.end() && first_place(rows->second) == place)
                out.insert(tensor);
        }
    }
    return {out.begin(), out.end()};
}

void LayerRounding::put(const std::string& tensor, const Tensor& rounded) {
    model_.tensors[tensor] = rounded;
    done_.insert(tensor);
}

// ---- embedding and output

std::set<std::string> LayerRounding::tables() const {
    std::set<std::string> out;
    for (const Slot slot : {Slot::token_embd, Slot::output}) {
        const auto found = model_.topology.globals.find(slot);
        if (found == model_.topology.globals.end()) continue;
        const bool table =
            std::holds_alternative<Dense>(found->second) || std::holds_alternative<RowParts>(found->second);
        if (!table) continue;
        for (const std::string& tensor : tensors_of(found->second))
            if (is_todo(tensor)) out.insert(tensor);
    }
    return out;
}

// A map of the head has as many rows as the vocabulary for the same inputs, so its inputs need fewer tokens
// than those of other matrices.
void LayerRounding::round_tables(const Model& unquantized) {
    const auto tables = this->tables();
    if (tables.empty()) return;
    const Calibration some = first_tokens_for(*step_.calibration, model_.config.n_embd);
    const Measurement on{*step_.work, some, step_.identity_before_on(some), step_.threads};
    const std::vector<double> gram = UnquantizedGrams(unquantized, on, {kHead}).at(kHead);
    for (const std::string& tensor : tables) round_table(tensor, gram);
}

// As embedding, a row adds its own error to the residual stream; as output, the error of a row is measured by
// the inputs of the head. What is chosen for the layers changes nothing here.
void LayerRounding::round_table(const std::string& tensor, const std::vector<double>& of_head) {
    const DType type = choice_.types.at(tensor);
    nlohmann::json inputs = {{"model", step_.identity_before}, {"tensor", tensor}, {"type", name(type)}};
    if (const auto before = rows_before(model_, tensor))
        inputs["rows"] = {*before, model_.tensor(tensor).rows()};
    const auto found = step_.work->results_of_all({kTable, inputs}, [&] {
        const Tensor& table = model_.tensor(tensor);
        const int64_t width = table.row_elements();
        const auto n = static_cast<size_t>(width);
        Doubles gram(n * n);
        double mean = 1;
        if (reads(model_, Slot::output, tensor)) {
            gram = of_head;
            mean = 0;
            for (size_t i = 0; i < n; ++i) mean += gram[i * (n + 1)] / static_cast<double>(n);
        }
        if (reads(model_, Slot::token_embd, tensor))
            for (size_t i = 0; i < n; ++i) gram[i * (n + 1)] += mean;
        const std::vector<float> weights = weights_of(model_, tensor, type);
        Rounded out = gptq_rounded(weights, {gram, width, width}, type);
        return Arrays{{"weights", {table.shape, {}, type, std::move(out.packed)}}};
    });
    put(tensor, found.at("weights"));
}

// ---- matrices whose inputs alone matter

void LayerRounding::round_matrices(Place place, const std::vector<std::string>& tensors) {
    if (tensors.empty()) return;
    const auto found = step_.work->results_of_all(
        {kInputMatrices,
         {{"step", step_.identity}, {"layer", place.first}, {"inputs", tap_name(place.second)}}},
        [&] {
            const LeastSquares inputs = inputs_at(place);
            Arrays out;
            for (const std::string& tensor : tensors) out[tensor] = rounded(tensor, place, inputs);
            return out;
        });
    for (const std::string& tensor : tensors) put(tensor, found.at(tensor));
}

LeastSquares LayerRounding::inputs_at(Place place) {
    std::optional<LeastSquares> sums;
    solver_.visit(
        model_, place.first, {place.second},
        [&](const AlignedStreams::Rows& seen) {
            const auto rows = seen.modified.tapped(place.second);
            if (!sums) sums.emplace(static_cast<int64_t>(rows.size()) / seen.tokens, 0);
            sums->add(seen.tokens, rows.data(), nullptr);
        },
        AlignedStreams::Extent::model_taps);
    sums->sum_over_processes();
    return std::move(*sums);
}

Array LayerRounding::rounded(const std::string& tensor, Place place, const LeastSquares& inputs) const {
    const Tensor& whole = model_.tensor(tensor);
    const DType type = choice_.types.at(tensor);
    const int64_t columns = whole.row_elements();
    const std::vector<float> weights = weights_of(model_, tensor, type);
    Array out{whole.shape, {}, type, {}};
    for (const UsedRows& part : covering(uses_.at(tensor), whole.rows())) {
        Doubles gram(static_cast<size_t>(columns * columns));
        for (const InputUse& use : part.uses) {
            if (place_of(use) == place) {
                add_gram(use, inputs.gram(), gram);
            } else {
                add_gram(use, grams_->at(place_of(use)), gram);
            }
        }
        const auto rows = std::span(weights).subspan(static_cast<size_t>(part.first * columns),
                                                     static_cast<size_t>(part.count * columns));
        const Rounded some = gptq_rounded(rows, {gram, columns, columns}, type);
        out.packed.insert(out.packed.end(), some.packed.begin(), some.packed.end());
    }
    return out;
}

// ---- maps that end a module

std::optional<FreeMap> LayerRounding::map_to_solve(size_t layer, const OutputMap& module) const {
    if (!settings_.resolve || !model_.topology.has(layer, module.matrix)) return std::nullopt;
    auto map = free_map(model_, layer, module.matrix);
    const auto todo = [&](const std::string& tensor) { return is_todo(tensor); };
    if (!map || !std::all_of(map->tensors.begin(), map->tensors.end(), todo)) return std::nullopt;
    return map;
}

DType LayerRounding::type_of(const FreeMap& map) const {
    const std::string& tensor = map.tensors.front();
    const DType type = choice_.types.at(tensor);  // fits the tensor, but a factor is rounded transposed
    return map.inputs == model_.tensor(tensor).row_elements() ? type : fitting_type(type, map.inputs);
}

bool LayerRounding::solves_bias(size_t layer, const OutputMap& module) const {
    return settings_.bias && has_bias(model_, layer, module);
}

void LayerRounding::solve(size_t layer, const OutputMap& module, const FreeMap& map) {
    const bool bias = solves_bias(layer, module);
    const DType type = type_of(map);
    const auto found = step_.work->results_of_all(
        {kOutput, {{"step", step_.identity}, {"layer", layer}, {"slot", slot_name(module.matrix)}}}, [&] {
            return OutputSolver::rounded(solver_.solve(model_, layer, module, map, bias), map, type, bias);
        });
    const Doubles figures = lazy::numbers(found.at("figures"));
    solver_.set_ridge(module.matrix, figures[0]);
    solved_.push_back({layer, module.matrix, map.what, figures[0], figures[1], figures[2]});
    install(layer, module, map, as_type(found.at("weights"), type));
    if (bias) install_vector(model_, layer, module.bias, found.at("bias"));
    if (model_.topology.has(layer, module.post_norm)) solve_gain(layer, module);
}

// As in refit: the norm after a map decides how much the module adds.
void LayerRounding::solve_gain(size_t layer, const OutputMap& module) {
    const auto found = step_.work->results_of_all(
        {kGain, {{"step", step_.identity}, {"layer", layer}, {"slot", slot_name(module.post_norm)}}}, [&] {
            RidgedGain solved = solver_.solve_gain(model_, layer, module);
            return Arrays{{"gain", {{model_.config.n_embd}, std::move(solved.gain)}}};
        });
    install_vector(model_, layer, module.post_norm, found.at("gain"));
}

void LayerRounding::install(size_t layer, const OutputMap& module, const FreeMap& map, const Tensor& solved) {
    model_ = map.install(model_, solved, requantized_);
    for (const auto& name : tensors_of(model_.topology.at(layer, module.matrix))) {
        if (model_.tensor(name).produce == solved.produce) done_.insert(name);
    }
    done_.insert(map.tensors.begin(), map.tensors.end());
}

}  // namespace refold
