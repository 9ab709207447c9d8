// Weights in quantized types, rounded for the inputs that they have.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "compress/method/lazy.h"
#include "compress/method/method.h"
#include "compress/method/work.h"
#include "compress/quantization/importance_matrix.h"
#include "compress/quantization/input_uses.h"
#include "compress/quantization/measure_importance.h"
#include "compress/quantization/type_choice.h"
#include "compress/quantization/unquantized_grams.h"
#include "compress/refit/output_solver.h"
#include "compress/rounding/gptq_rounding.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/progress.h"
#include "model/materialize.h"
#include "model/quantized.h"

namespace refold {
namespace {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;
using nlohmann::json;
using Place = UnquantizedGrams::Place;

constexpr std::array kInputs = {Tap::attn_input, Tap::attn_inner, Tap::ffn_input, Tap::ffn_inner};
constexpr Place kHead = {kWholeModel, Tap::layer_input};

WantedTypes wanted_types(const Options& options) {
    return {options.text("type"), options.text("embedding"), options.text("types")};
}

Model with_ranks_for(const Model& model, const Options& options) {
    const std::string& type = options.text("type");
    return type == "keep" ? model : with_whole_ranks(model, quantization_type(type));
}

const OutputMap* output_map(Tap inner) {
    for (const OutputMap& map : kOutputMaps)
        if (map.inner == inner) return &map;
    return nullptr;
}

Place place_of(const InputUse& use) { return {use.layer, *input_tap(use.slot)}; }

class Quantization {
public:
    Quantization(const Model& model, Step& step)
        : model_(with_ranks_for(model, step.options)),
          step_(step),
          choice_(choose_types(model_, wanted_types(step.options))),
          uses_(input_uses(model_)),
          solver_(step, parse_ridge(step.options.text("ridge"), "quantize")) {}

    Model run() {
        if (step_.dry_run()) {
            plan();
        } else {
            if (rounding() == "imatrix") read_importance();
            if (rounding() == "gptq") round_with_feedback();
            round_rest();
        }
        model_.drop_unreferenced();
        return finish();
    }

private:
    const std::string& rounding() const { return step_.options.text("rounding"); }

    // Tensors of the right shapes and types.
    void plan() {
        for (size_t p = 0; p < model_.topology.layers.size() && rounding() == "gptq"; ++p) {
            for (const OutputMap& module : kOutputMaps) {
                const auto map = map_to_solve(p, module.inner);
                if (!map) continue;
                install(p, module, *map, lazy::constant(type_of(*map), {map->inputs, map->outputs}, 0));
                if (solves_bias(p, module))
                    install_vector(model_, p, module.bias, lazy::constant(DType::F32, {map->outputs}, 0));
            }
        }
        for (const auto& [tensor, type] : choice_.types) {
            if (is_todo(tensor))
                model_.tensors[tensor] = lazy::constant(type, model_.tensor(tensor).shape, 0);
        }
    }

    DType type_of(const FreeMap& map) const {
        return fitting_type(choice_.types.at(map.tensors.front()), map.inputs);
    }
    bool solves_bias(size_t p, const OutputMap& module) const {
        return step_.options.text("bias") == "auto" && has_bias(model_, p, module);
    }

    void install(size_t p, const OutputMap& module, const FreeMap& map, const Tensor& solved) {
        model_ = map.install(model_, solved, requantized_);
        for (const auto& name : tensors_of(model_.topology.at(p, module.matrix))) {
            if (model_.tensor(name).produce == solved.produce) done_.insert(name);
        }
        for (const auto& name : map.tensors) done_.insert(name);
    }

    void round_with_feedback() {
        const Model unquantized = model_;
        const Measurement on{*step_.work, *step_.calibration, step_.identity_before, step_.threads};
        grams_.emplace(unquantized, on, shared_places());
        round_embeddings();
        const size_t layers = model_.topology.layers.size();
        Progress progress("quantize", layers, "layers");
        for (size_t p = 0; p < layers; ++p) {
            for (const Tap tap : kInputs) round_inputs(p, tap);
            solver_.done(p);
            progress.advance(1);
        }
        progress.finish();
    }

    bool is_todo(const std::string& tensor) const {
        return choice_.types.contains(tensor) && !done_.contains(tensor);
    }

    // The first place where inputs meet the tensor: there it is rounded.
    Place first_place(const std::vector<UsedRows>& rows) const {
        Place first = place_of(rows.front().uses.front());
        for (const UsedRows& part : rows) {
            const Place place = place_of(part.uses.front());
            if (rank_of(place) < rank_of(first)) first = place;
        }
        return first;
    }
    static std::pair<size_t, size_t> rank_of(const Place& place) {
        return {place.first, static_cast<size_t>(std::find(kInputs.begin(), kInputs.end(), place.second) -
                                                 kInputs.begin())};
    }

    // The places of later uses, and the head where a table is rounded.
    std::set<Place> shared_places() const {
        std::set<Place> out;
        for (const auto& [tensor, rows] : uses_) {
            if (!is_todo(tensor)) continue;
            const Place first = first_place(rows);
            for (const UsedRows& part : rows) {
                for (const InputUse& use : part.uses)
                    if (place_of(use) != first) out.insert(place_of(use));
            }
        }
        if (!head_tensors().empty()) out.insert(kHead);
        return out;
    }

    // Tensors of embedding and output that are to be rounded.
    std::set<std::string> head_tensors() const {
        std::set<std::string> out;
        for (const Slot slot : {Slot::token_embd, Slot::output}) {
            const auto found = model_.topology.globals.find(slot);
            if (found == model_.topology.globals.end()) continue;
            const auto* dense = std::get_if<Dense>(&found->second);
            if (dense != nullptr && is_todo(dense->tensor)) out.insert(dense->tensor);
        }
        return out;
    }

    bool reads(Slot slot, const std::string& tensor) const {
        const auto found = model_.topology.globals.find(slot);
        return found != model_.topology.globals.end() && found->second == Expression(Dense{tensor});
    }

    static constexpr Computation kEmbedding{"quantize embedding", 1};

    // As a table, a row adds its own error to the residual stream; as head, the error of a row is measured by
    // the inputs of the head.
    void round_embeddings() {
        for (const std::string& tensor : head_tensors()) {
            const auto found =
                step_.work->results_of_all({kEmbedding, {{"step", step_.identity}, {"tensor", tensor}}}, [&] {
                    const Tensor& table = model_.tensor(tensor);
                    const int64_t width = table.row_elements();
                    const auto n = static_cast<size_t>(width);
                    Doubles gram(n * n);
                    double mean = 1;
                    if (reads(Slot::output, tensor)) {
                        gram = grams_->at(kHead);
                        mean = 0;
                        for (size_t i = 0; i < n; ++i) mean += gram[i * (n + 1)] / static_cast<double>(n);
                    }
                    if (reads(Slot::token_embd, tensor))
                        for (size_t i = 0; i < n; ++i) gram[i * (n + 1)] += mean;
                    const DType type = choice_.types.at(tensor);
                    auto rounded = gptq_rounded(floats_of(model_, tensor), {gram, width, width}, type);
                    return Arrays{{"weights", {table.shape, {}, type, std::move(rounded.packed)}}};
                });
            put(tensor, found.at("weights"));
        }
    }

    void put(const std::string& tensor, const Tensor& rounded) {
        model_.tensors[tensor] = rounded;
        done_.insert(tensor);
    }

    std::vector<Slot> slots_at(size_t p, Tap tap) const {
        std::vector<Slot> out;
        for (const auto& [slot, expression] : model_.topology.layers[p]) {
            if (properties(slot).kind == SlotKind::matrix && input_tap(slot) == tap) out.push_back(slot);
        }
        return out;
    }

    // The map that ends the module, where its free part is to be solved and rounded.
    std::optional<FreeMap> map_to_solve(size_t p, Tap tap) const {
        const OutputMap* module = output_map(tap);
        if (module == nullptr || step_.options.text("resolve") == "no" ||
            !model_.topology.has(p, module->matrix))
            return std::nullopt;
        auto map = free_map(model_, p, module->matrix);
        if (!map || !std::all_of(map->tensors.begin(), map->tensors.end(),
                                 [&](const std::string& t) { return is_todo(t); }))
            return std::nullopt;
        return map;
    }

    static constexpr Computation kMatrices{"quantize matrices", 1}, kOutput{"quantize output map", 1};

    // Rounds the tensors that meet these inputs first.
    void round_inputs(size_t p, Tap tap) {
        const auto map = map_to_solve(p, tap);
        std::vector<std::string> tensors;
        for (const Slot slot : slots_at(p, tap)) {
            for (const std::string& tensor : tensors_of(model_.topology.at(p, slot))) {
                const auto rows = uses_.find(tensor);
                const bool free =
                    map && std::find(map->tensors.begin(), map->tensors.end(), tensor) != map->tensors.end();
                if (is_todo(tensor) && !free && rows != uses_.end() &&
                    first_place(rows->second) == Place(p, tap))
                    tensors.push_back(tensor);
            }
        }
        std::sort(tensors.begin(), tensors.end());
        tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
        if (!tensors.empty()) {
            const auto found = step_.work->results_of_all(
                {kMatrices, {{"step", step_.identity}, {"layer", p}, {"inputs", tap_name(tap)}}},
                [&] { return rounded_matrices(p, tap, tensors); });
            for (const std::string& tensor : tensors) put(tensor, found.at(tensor));
        }
        if (map) solve(p, *output_map(tap), *map);
    }

    Arrays rounded_matrices(size_t p, Tap tap, const std::vector<std::string>& tensors) {
        std::optional<LeastSquares> sums;
        solver_.visit(
            model_, p, {tap},
            [&](const AlignedStreams::Rows& seen) {
                const auto rows = seen.modified.tapped(tap);
                if (!sums) sums.emplace(static_cast<int64_t>(rows.size()) / seen.tokens, 0);
                sums->add(seen.tokens, rows.data(), nullptr);
            },
            true);
        sums->sum_over_processes();
        Arrays out;
        for (const std::string& tensor : tensors) {
            const Tensor& whole = model_.tensor(tensor);
            const DType type = choice_.types.at(tensor);
            const int64_t columns = whole.row_elements();
            const Floats weights = floats_of(model_, tensor);
            Array& array = out[tensor] = {whole.shape, {}, type, {}};
            array.packed.resize(row_bytes(type, columns) * static_cast<size_t>(whole.rows()));
            for (const UsedRows& part : covering(uses_.at(tensor), whole.rows())) {
                Doubles gram(static_cast<size_t>(columns * columns));
                for (const InputUse& use : part.uses)
                    add_gram(use,
                             place_of(use) == Place(p, tap)
                                 ? Doubles(sums->gram().begin(), sums->gram().end())
                                 : grams_->at(place_of(use)),
                             gram);
                const auto rows = std::span(weights).subspan(static_cast<size_t>(part.first * columns),
                                                             static_cast<size_t>(part.count * columns));
                const Rounded rounded = gptq_rounded(rows, {gram, columns, columns}, type);
                std::copy(
                    rounded.packed.begin(), rounded.packed.end(),
                    array.packed.begin() + static_cast<ptrdiff_t>(row_bytes(type, columns)) * part.first);
            }
        }
        return out;
    }

    // All rows; those that nothing uses with the inputs of the rows before.
    static std::vector<UsedRows> covering(const std::vector<UsedRows>& used, int64_t rows) {
        std::vector<UsedRows> out = used;
        out.front().count += out.front().first;
        out.front().first = 0;
        for (size_t i = 0; i + 1 < out.size(); ++i) out[i].count = out[i + 1].first - out[i].first;
        out.back().count = rows - out.back().first;
        return out;
    }

    void solve(size_t p, const OutputMap& module, const FreeMap& map) {
        const bool bias = solves_bias(p, module);
        const DType type = type_of(map);
        const auto found = step_.work->results_of_all(
            {kOutput, {{"step", step_.identity}, {"layer", p}, {"slot", slot_name(module.matrix)}}},
            [&] { return solved_output(p, module, map, bias, type); });
        const auto figures = lazy::floats(found.at("figures"), nullptr);
        solver_.set_ridge(module.matrix, static_cast<double>(figures[0]));
        details_.push_back({{"layer", p},
                            {"slot", slot_name(module.matrix)},
                            {"free", map.what},
                            {"ridge", figures[0]},
                            {"error_before", figures[1]},
                            {"error_after", figures[2]}});
        install(p, module, map, found.at("weights"));
        if (bias) install_vector(model_, p, module.bias, found.at("bias"));
        if (model_.topology.has(p, module.post_norm)) solve_gain(p, module);
    }

    static constexpr Computation kGain{"quantize gain", 1};

    // As in refit: the norm after a map decides how much the module adds.
    void solve_gain(size_t p, const OutputMap& module) {
        const auto found = step_.work->results_of_all(
            {kGain, {{"step", step_.identity}, {"layer", p}, {"slot", slot_name(module.post_norm)}}}, [&] {
                RidgedGain solved = solver_.solve_gain(model_, p, module);
                return Arrays{{"gain", {{model_.config.n_embd}, std::move(solved.gain)}}};
            });
        install_vector(model_, p, module.post_norm, found.at("gain"));
    }

    Arrays solved_output(size_t p, const OutputMap& module, const FreeMap& map, bool bias, DType type) {
        OutputSolver::Solution solved = solver_.solve(model_, p, module, map, bias);
        Rounded rounded{solved.map.weights, {}};
        if (!is_float(type))
            rounded =
                gptq_rounded(solved.map.weights, {solved.all.gram(), solved.all.inputs(), map.inputs}, type);
        const auto in = static_cast<size_t>(map.inputs), stride = static_cast<size_t>(solved.all.inputs());
        Array weights{{map.inputs, map.outputs}, {}, type, std::move(rounded.packed)},
            offsets{{map.outputs}, {}};
        for (size_t at = 0; at < rounded.values.size(); at += stride) {
            const float* row = rounded.values.data() + at;
            if (is_float(type)) weights.values.insert(weights.values.end(), row, row + in);
            if (bias) offsets.values.push_back(row[in]);
        }
        if (is_float(type)) weights.type = DType::F32;
        const double after = solved.held_out.error(rounded.values);
        Arrays out = {{"weights", std::move(weights)},
                      {"figures",
                       {{3},
                        {static_cast<float>(solved.map.ridge), static_cast<float>(solved.map.error_before),
                         static_cast<float>(after)}}}};
        if (bias) out["bias"] = std::move(offsets);
        return out;
    }

    // To nearest, what has no inputs that are known, or all of it.
    void round_rest() {
        for (const auto& [tensor, type] : choice_.types) {
            if (!is_todo(tensor)) continue;
            const auto found = importance_.tensors.find(tensor);
            NearestOptions options{step_.threads, {}};
            if (found != importance_.tensors.end()) options.importance = found->second.mean_squares;
            if (needs_importance(type) && options.importance.empty())
                fail(ErrorCode::usage, "quantize",
                     "{}: {} cannot be rounded to nearest without an importance matrix - choose another type "
                     "for it, or another "
                     "rounding",
                     tensor, name(type));
            put(tensor, nearest_tensor(model_, tensor, type, options));
        }
    }

    void read_importance() {
        const std::string& file = step_.options.text("imatrix");
        importance_ = file.empty() ? measure_importance(model_, *step_.calibration, step_.threads)
                                   : load_importance_matrix(file);
        check_importance_matrix(importance_, model_);
    }

    Model finish() {
        std::map<std::string, size_t> counts;
        json types = json::object();
        for (const auto& [tensor, type] : choice_.types) {
            ++counts[name(type)];
            types[tensor] = name(type);
        }
        auto& lines = step_.report.lines;
        std::string text;
        for (const auto& [type, count] : counts)
            text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, type);
        lines.push_back("matrices: " + text);
        if (!details_.empty()) {
            double before = 0, after = 0;
            for (const json& d : details_) {
                before += d["error_before"].get<double>();
                after += d["error_after"].get<double>();
            }
            lines.push_back(
                fmt::format("{} output maps solved and rounded; error on held-out text {:.3g} -> {:.3g}",
                            details_.size(), before, after));
        }
        if (!choice_.fallbacks.empty())
            lines.push_back(
                fmt::format("rows that are no whole blocks: {}", fmt::join(choice_.fallbacks, ", ")));
        json details = {{"types", types}, {"solved", details_}, {"fallbacks", choice_.fallbacks}};
        report_requantized(requantized_, "", step_.report, details);
        step_.report.details = details.dump();
        return std::move(model_);
    }

    Model model_;
    Step& step_;
    TypeChoice choice_;
    std::map<std::string, std::vector<UsedRows>> uses_;
    OutputSolver solver_;
    std::optional<UnquantizedGrams> grams_;
    ImportanceMatrix importance_;
    std::set<std::string> done_;
    std::vector<Requantized> requantized_;
    std::vector<json> details_;
};

Model apply(const Model& model, Step& step) { return Quantization(model, step).run(); }

constexpr const char* kDocumentation = R"(
Writes matrices in quantized types. `type` is that of all matrices, `embedding` that of embedding and output, and `types` has
exceptions by slot and layer: `types: "ffn.down=q4_k attn.v@0-3,29=q5_0"`. `keep` leaves the types as they are. A row that is not
whole blocks of a type gets the next larger type that fits; the report lists these.

`rounding` says how. `nearest` needs no text. `imatrix` searches scales with the mean squares of the inputs, as llama.cpp does: from one
of its files (`imatrix=FILE`), or measured on the calibration text. `gptq` looks at the inputs that the matrices have on the calibration text, and rounds
layer after layer in the model that is quantized so far:

- **With feedback.** The columns of a matrix are rounded one after the other, and each makes up for the errors of those before, as far
  as their inputs are correlated (GPTQ, Frantar et al. 2023), with the whole Gram matrix of the inputs. A block's scales are chosen by
  llama.cpp's weighted search when its first column is reached. IQ1, IQ2 and IQ3 types, whose codes stand for several numbers at once,
  are corrected from block to block.
- **Solved before rounding** (`resolve=auto`). The maps that end attention and FFN are first solved anew, as `refit` does, so that the
  residual stream is the original's: they make up for the errors of everything before them. Only then are they rounded.
- **For all uses.** A tensor that several layers use is rounded once, where it is used first, for the sum of the Gram matrices of all its
  uses. Those of later uses are measured before anything is quantized.
- **Embedding and output** are rounded for the inputs of the head; as a table, every row for its own error.
)";

}  // namespace

extern const Method quantize_method;
const Method quantize_method = {
    "quantize",
    "weights in quantized types, rounded for the inputs that they have",
    "GPTQ (Frantar et al. 2023) with output maps solved first; refold",
    kDocumentation + 1,
    {
        {.name = "type", .fallback = "q4_0", .help = "type of matrices, or keep"},
        {.name = "embedding",
         .fallback = "auto",
         .help = "type of embedding and output, keep, or auto: q6_k for types below 6 bits, else the same"},
        {.name = "types",
         .fallback = "",
         .help = "exceptions: SLOT=TYPE or SLOT@LAYERS=TYPE, separated by spaces"},
        {.name = "rounding",
         .kind = OptionSpec::Kind::choice,
         .fallback = "gptq",
         .help = "with feedback for the inputs on the calibration text; to nearest, with scales for an "
                 "importance matrix; to nearest",
         .choices = {"gptq", "imatrix", "nearest"}},
        {.name = "imatrix",
         .fallback = "",
         .help = "file of llama.cpp's form, for rounding=imatrix (refold imatrix writes them); empty: "
                 "measured on the calibration text"},
        {.name = "resolve",
         .kind = OptionSpec::Kind::choice,
         .fallback = "auto",
         .help = "solve the maps that end attention and FFN anew before they are rounded (gptq)",
         .choices = {"auto", "no"}},
        {.name = "ridge",
         .fallback = "auto",
         .help = "of these maps; auto: by held-out text; or a number, such as 0.01"},
        {.name = "bias",
         .kind = OptionSpec::Kind::choice,
         .fallback = "auto",
         .help = "also solve a bias, where the architecture has one",
         .choices = {"auto", "no"}},
    },
    apply,
    [](const Options& options) {
        const std::string& rounding = options.text("rounding");
        return rounding == "gptq" || (rounding == "imatrix" && options.text("imatrix").empty());
    },
};

}  // namespace refold
