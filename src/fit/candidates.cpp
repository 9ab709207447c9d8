#include "fit/candidates.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "compress/method/lazy.h"
#include "compress/quantization/row_types.h"
#include "compress/rounding/gptq_rounding.h"
#include "core/parallel.h"
#include "core/progress.h"
#include "linalg/blas.h"
#include "linalg/blas_threads.h"
#include "linalg/device.h"
#include "model/materialize.h"
#include "model/quantized.h"

namespace refold {
namespace {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

constexpr std::array kTypes = {DType::Q2_K,   DType::Q3_K, DType::MXFP4, DType::IQ4_XS, DType::Q4_0,
                               DType::IQ4_NL, DType::Q4_K, DType::Q4_1,  DType::Q5_0,   DType::Q5_K,
                               DType::Q5_1,   DType::Q6_K, DType::Q8_0};
constexpr UnquantizedGrams::Place kHead = {kWholeModel, Tap::layer_input};

constexpr Computation kErrors{"errors of rounded matrices", 5};
// Only the ratios of the errors of types matter, and these hardly differ between rows: of a matrix, runs of
// rows at even distances stand for all. A run is as long as the longest fold() at least.
constexpr int64_t kRowsTried = 128, kRowsOfRun = 16;
// Of a part of a table, rows at even distances. Smaller parts are not made; fold() divides their rows.
constexpr int64_t kRowsTriedOfPart = 1024, kRowsOfPart = 256;

// Sum over rows e of e^T gram e.
double weighted_squares(const Floats& errors, const Floats& gram, int64_t columns) {
    constexpr int64_t kRows = 4096;
    const auto rows = static_cast<int64_t>(errors.size()) / columns;
    double sum = 0;
    Floats product;
    for (int64_t first = 0; first < rows; first += kRows) {
        const int64_t count = std::min(kRows, rows - first);
        const float* some = errors.data() + first * columns;
        product.resize(static_cast<size_t>(count * columns));
        blas::multiply(blas::Op::plain, blas::Op::plain, {columns, count, columns}, gram.data(), some,
                       product.data());
        for (size_t i = 0; i < product.size(); ++i)
            sum += static_cast<double>(product[i]) * static_cast<double>(some[i]);
    }
    return sum;
}

// Of a matrix [rows x columns], row major; a multiple of `together` rows, as it has.
Floats rows_to_try(Floats matrix, int64_t columns, int64_t together) {
    const int64_t rows = static_cast<int64_t>(matrix.size()) / columns;
    const int64_t of_run = std::max(together, kRowsOfRun), runs = std::max(kRowsTried / of_run, int64_t{2});
    if (rows <= runs * of_run) return matrix;
    Floats out;
    for (int64_t run = 0; run < runs; ++run) {
        const int64_t first = (rows - of_run) * run / (runs - 1);
        out.insert(out.end(), &matrix[static_cast<size_t>(first * columns)],
                   matrix.data() + (first + of_run) * columns);
    }
    return out;
}

// Parts of `rows` rows from the most used one on: half of them last, half of the others before these, ...
std::vector<std::pair<int64_t, int64_t>> by_halves(int64_t rows) {
    std::vector<int64_t> ends = {rows};
    for (rows /= 2; ends.size() < kMostRowParts; rows /= 2) {
        const int64_t end = rows / kRowsOfPart * kRowsOfPart;
        if (end == 0) break;
        ends.push_back(end);
    }
    std::ranges::reverse(ends);
    std::vector<std::pair<int64_t, int64_t>> out;
    int64_t first = 0;
    for (const int64_t end : ends) {
        out.emplace_back(first, end - first);
        first = end;
    }
    return out;
}

// Rows [count x columns] that stand for a part of a table, and for how many uses each does, as a multiple of
// those of the table's mean row.
struct UsedRowsToTry {
    Floats rows;
    Doubles use;
};

// Of a whole table, rows of all its halves: a few of its rows have most of the use.
UsedRowsToTry rows_to_try(const Tensor& table, const FitTensor& part,
                          const std::vector<int64_t>& occurrences) {
    const auto order = rows_by_use(occurrences, table.rows());
    const Doubles use = expected_use(occurrences, table.rows());
    const TensorBytes bytes(table);
    const size_t stride = row_bytes(table.type, table.row_elements()),
                 width = static_cast<size_t>(table.row_elements());
    const bool whole = part.rows == table.rows();
    const auto ranges = whole ? by_halves(part.rows) : std::vector{std::pair{part.first, part.rows}};
    UsedRowsToTry out;
    for (const auto& [first, rows] : ranges) {
        const int64_t count = std::min(kRowsTriedOfPart, rows);
        for (int64_t i = 0; i < count; ++i) {
            const auto row = static_cast<size_t>(order[static_cast<size_t>(first + rows * i / count)]);
            out.rows.resize(out.rows.size() + width);
            dequantize(table.type, bytes.bytes().subspan(row * stride, stride),
                       std::span(out.rows).last(width));
            out.use.push_back(use[row] * static_cast<double>(table.rows()) * static_cast<double>(rows) /
                              static_cast<double>(count));
        }
    }
    return out;
}

bool has_rows_of_tokens(Slot slot) { return slot == Slot::token_embd || slot == Slot::output; }

}  // namespace

std::vector<FitTensor> fit_tensors(const Model& model, RowLayout layout) {
    const auto inputs = input_uses(model);
    const auto quantized = quantized_uses(model);
    std::vector<FitTensor> out;
    std::set<std::string> seen;
    const auto see = [&](const Slots& slots, size_t layer) {
        for (const auto& [slot, expression] : slots) {
            for (const std::string& name : tensors_of(expression)) {
                const auto use = quantized.find(name);
                if (use == quantized.end() || !use->second.matrix || !seen.insert(name).second) continue;
                const bool table = layer == kWholeModel;
                if (!table && !inputs.contains(name)) continue;
                const Tensor& stored = model.tensor(name);
                const bool alone = std::holds_alternative<Dense>(expression);
                const bool parts = table && alone && layout == RowLayout::or_folded && stored.fold() == 1;
                for (const auto& [first, rows] :
                     parts ? by_halves(stored.rows()) : std::vector{std::pair{int64_t{0}, stored.rows()}}) {
                    FitTensor tensor{name, slot, layer, table, first, rows, {}};
                    QuantizedUse of_part = use->second;
                    // At most: parts of one type become one, and ids do not list the last one.
                    const uint64_t of_ids =
                        first + rows < stored.rows() ? static_cast<uint64_t>(rows) * sizeof(float) : 0;
                    if (rows < stored.rows()) of_part.whole_rows = std::gcd(of_part.whole_rows, rows);
                    for (const DType type : kTypes) {
                        if (fits(type, of_part, layout))
                            tensor.candidates.push_back(
                                {type, row_bytes(type, stored.row_elements() * rows) + of_ids, 0});
                    }
                    if (!tensor.candidates.empty()) out.push_back(std::move(tensor));
                }
            }
        }
    };
    for (size_t p = 0; p < model.topology.layers.size(); ++p) see(model.topology.layers[p], p);
    see(model.topology.globals, kWholeModel);
    return out;
}

std::vector<std::vector<size_t>> of_one_type(const Model& model, const std::vector<FitTensor>& tensors,
                                             RowLayout layout) {
    const auto& fused = model.family->fused;
    std::vector<std::vector<size_t>> out;
    std::map<std::pair<size_t, Slot>, size_t> joined;  // where a layer's maps of one tensor are in `out`
    for (size_t t = 0; t < tensors.size(); ++t) {
        const auto first = properties(tensors[t].slot).group;
        const bool joins =
            layout == RowLayout::whole_blocks &&
            std::ranges::any_of(fused, [&](const FusedMaps& maps) { return maps.first == first; });
        const std::pair place(tensors[t].layer, first.value_or(tensors[t].slot));
        if (joins && !joined.emplace(place, out.size()).second)
            out[joined.at(place)].push_back(t);
        else
            out.push_back({t});
    }
    return out;
}

Candidates::Candidates(const Model& model, const Measurement& on, RowLayout layout)
    : model_(model), uses_(input_uses(model)), tensors_(fit_tensors(model, layout)) {
    std::set<UnquantizedGrams::Place> places = {kHead};
    for (const auto& [name, parts] : uses_) {
        for (const UsedRows& part : parts) {
            for (const InputUse& use : part.uses) places.insert({use.layer, *input_tap(use.slot)});
        }
    }
    grams_.emplace(model, on, places);
    std::vector<ResultKey> keys;
    for (const FitTensor& tensor : tensors_) {
        nlohmann::json types = nlohmann::json::array();
        for (const Candidate& candidate : tensor.candidates) types.push_back(name(candidate.type));
        nlohmann::json inputs = {{"model", on.identity}, {"tensor", tensor.name}, {"types", types}};
        if (tensor.rows < model.tensor(tensor.name).rows()) inputs["rows"] = {tensor.first, tensor.rows};
        keys.push_back({kErrors, inputs});
    }
    Progress progress("errors of types", keys.size(), "matrices");
    const auto compute = [&](size_t t) {
        Floats errors = errors_of(tensors_[t], on.calibration);
        return Arrays{{"errors", {{static_cast<int64_t>(errors.size())}, std::move(errors)}}};
    };
    const auto found = on.work.results_shared_out(keys, compute, [&] { progress.advance(1); });
    for (size_t t = 0; t < found.size(); ++t) {
        const Doubles errors = lazy::numbers(found[t].at("errors"));
        for (size_t i = 0; i < errors.size(); ++i) tensors_[t].candidates[i].error = errors[i];
    }
    progress.finish();
}

Floats Candidates::errors_of(const FitTensor& tensor, const Calibration& calibration) const {
    const Tensor& stored = model_.tensor(tensor.name);
    const int64_t columns = stored.row_elements();
    UsedRowsToTry part;
    double scale = 1;
    if (has_rows_of_tokens(tensor.slot) && stored.rows() == model_.config.n_vocab) {
        part = rows_to_try(stored, tensor, calibration.occurrences);
    } else {
        int64_t together = 1;
        for (const Candidate& candidate : tensor.candidates)
            together = std::max(together, fold(candidate.type, columns));
        part.rows = rows_to_try(floats_of(model_, tensor.name), columns, together);
        scale = static_cast<double>(tensor.rows * columns) / static_cast<double>(part.rows.size());
    }
    const Doubles gram = gram_of(tensor.name);
    const Floats as_floats(gram.begin(), gram.end());
    const blas::Kept kept(std::span<const float>{as_floats});
    const auto count = static_cast<int64_t>(tensor.candidates.size());
    Floats out(tensor.candidates.size());
    blas::share_out(count, [&](int64_t c) {
        const DType type = tensor.candidates[static_cast<size_t>(c)].type;
        Floats difference = nearest_rounded(part.rows, {gram, columns, columns}, type, 1).values;
        for (size_t i = 0; i < difference.size(); ++i) {
            difference[i] -= part.rows[i];
            if (!part.use.empty())
                difference[i] *= static_cast<float>(std::sqrt(part.use[i / static_cast<size_t>(columns)]));
        }
        out[static_cast<size_t>(c)] =
            static_cast<float>(scale * weighted_squares(difference, as_floats, columns));
    });
    return out;
}

// Rows that are used differently count alike here.
Doubles Candidates::gram_of(const std::string& tensor) const {
    const auto found = uses_.find(tensor);
    if (found == uses_.end()) return grams_->at(kHead);
    const auto n = static_cast<size_t>(model_.tensor(tensor).row_elements());
    Doubles gram(n * n);
    for (const UsedRows& part : found->second) {
        for (const InputUse& use : part.uses)
            add_gram(use, grams_->at({use.layer, *input_tap(use.slot)}), gram);
    }
    return gram;
}

Model Candidates::with_probe(const FitTensor& tensor) const {
    Model out = model_;
    const Tensor& stored = model_.tensor(tensor.name);
    const int64_t columns = stored.row_elements();
    const Doubles gram = gram_of(tensor.name);
    Rounded rounded =
        nearest_rounded(floats_of(model_, tensor.name), {gram, columns, columns}, kProbe, default_threads());
    out.tensors[tensor.name] = {
        kProbe, stored.shape, {}, [packed = std::move(rounded.packed)] { return packed; }};
    return out;
}

}  // namespace refold
