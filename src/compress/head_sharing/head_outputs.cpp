#include "compress/head_sharing/head_outputs.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "calibrate/residual_stream.h"
#include "compress/method/lazy.h"
#include "compress/method/work.h"
#include "compress/refit/free_map.h"
#include "compress/refit/output_solver.h"
#include "core/error.h"
#include "core/progress.h"
#include "linalg/blas.h"
#include "linalg/least_squares.h"
#include "model/materialize.h"

namespace refold {
namespace {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

constexpr Computation kCosines{"cosines of head outputs", 1}, kMaps{"head maps", 1};

// Elements of a unit in the input of attn.o.
int64_t width_of(const Model& model) { return model.config.q_per_kv() * model.config.head_dim; }

// Some columns of row-major rows.
Floats columns(std::span<const float> rows, int64_t stride, int64_t first, int64_t count) {
    Floats out;
    for (auto row = rows.begin(); row != rows.end(); row += stride)
        out.insert(out.end(), row + first, row + first + count);
    return out;
}

// Adds the sum over rows of x^T y [nx, ny], all row major.
void add_products(int64_t rows, std::span<const float> x, std::span<const float> y, Doubles& sum) {
    const auto nx = static_cast<int64_t>(x.size()) / rows, ny = static_cast<int64_t>(y.size()) / rows;
    Floats product(static_cast<size_t>(nx * ny));
    blas::multiply(blas::Op::plain, blas::Op::transposed, {ny, nx, rows}, y.data(), x.data(), product.data());
    sum.resize(product.size());
    for (size_t i = 0; i < product.size(); ++i) sum[i] += static_cast<double>(product[i]);
}

Doubles products(int64_t rows, std::span<const float> x, std::span<const float> y) {
    Doubles out;
    add_products(rows, x, y, out);
    return out;
}

double inner(const Doubles& a, const Doubles& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// The block [d, d] of a square row-major matrix.
Doubles block(const Doubles& matrix, int64_t row, int64_t column, int64_t d) {
    const auto stride = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(matrix.size()))));
    Doubles out;
    for (int64_t r = row; r < row + d; ++r) {
        const auto at = matrix.begin() + r * stride + column;
        out.insert(out.end(), at, at + d);
    }
    return out;
}

// The residual stream of some sequences, made when it is first needed.
class Inputs {
public:
    Inputs(const Model& model, std::vector<std::vector<int32_t>> sequences, const Step& step)
        : model_(model), sequences_(std::move(sequences)), step_(step) {}

    const std::vector<std::vector<int32_t>>& sequences() const { return sequences_; }

    ResidualStream& before(size_t layer) {
        if (!stream_) stream_.emplace(model_, sequences_, step_.calibration->options.length, step_.threads);
        if (layer > stream_->layer()) stream_->advance(model_, layer - 1);
        return *stream_;
    }

    // The layer's input of attn.o with the heads of `model`. The FFN is not needed, so it is not loaded.
    ResidualStream::Pass attention_of(Model model, size_t layer) {
        std::erase_if(model.topology.layers[layer], [](const auto& s) { return belongs_to_ffn(s.first); });
        return {before(layer), model, layer, {Tap::attn_inner}, true};
    }

    std::span<const float> run(ResidualStream::Pass& pass, size_t sequence) const {
        pass.run(sequence);
        return pass.tapped(Tap::attn_inner);
    }

private:
    const Model& model_;
    std::vector<std::vector<int32_t>> sequences_;
    const Step& step_;
    std::optional<ResidualStream> stream_;
};

std::vector<std::vector<int32_t>> compared_text(const Calibration& calibration) {
    constexpr int64_t kTokens = 4096;
    std::vector<std::vector<int32_t>> out;
    int64_t tokens = 0;
    for (const auto& sequence : calibration.fit) {
        if (tokens >= kTokens) break;
        out.push_back(sequence);
        tokens += static_cast<int64_t>(sequence.size());
    }
    return out;
}

class Comparison {
public:
    Comparison(const Model& model, const OutputComparison& comparison, const Step& step)
        : model_(model),
          comparison_(comparison),
          inputs_(model, compared_text(*step.calibration), step),
          d_(width_of(model)) {}

    // [units of the layer, formers]
    Doubles of(size_t layer, const std::vector<Unit>& units, const std::vector<Unit>& formers) {
        own_.clear();
        Doubles gram;
        auto pass = inputs_.attention_of(model_, layer);
        for (size_t s = 0; s < inputs_.sequences().size(); ++s) {
            const auto z = inputs_.run(pass, s);
            own_.emplace_back(z.begin(), z.end());
            add_products(tokens(s), z, z, gram);
        }
        output_ = output_of(layer);
        later_.clear();
        for (const Unit& unit : units) {
            const Floats w = columns(output_, stride(layer), unit.index * d_, d_);
            Later& later = later_.emplace_back(Later{unit, products(model_.config.n_embd, w, w), 0});
            later.energy = inner(later.metric, block(gram, unit.index * d_, unit.index * d_, d_));
        }
        Doubles out(units.size() * formers.size());
        // As many formers at a time as the layer has places.
        const auto places = static_cast<size_t>(model_.config.n_head_kv_of(layer));
        for (size_t first = 0; first < formers.size(); first += places) {
            const size_t count = std::min(places, formers.size() - first);
            const Sums sums = run(layer, places, std::span(formers).subspan(first, count));
            for (size_t j = 0; j < count; ++j) {
                const Doubles cosines = cosines_of(layer, formers[first + j], static_cast<int64_t>(j), sums);
                for (size_t i = 0; i < units.size(); ++i) out[i * formers.size() + first + j] = cosines[i];
            }
        }
        return out;
    }

private:
    struct Later {
        Unit unit;
        Doubles metric;  // W^T W
        double energy;   // sum of |W z|^2
    };
    struct Sums {
        Doubles gram, cross;  // of z' z'^T and z z'^T, of all places
    };

    int64_t tokens(size_t s) const { return static_cast<int64_t>(inputs_.sequences()[s].size()); }
    int64_t stride(size_t layer) const { return model_.config.n_head_kv_of(layer) * d_; }
    Floats output_of(size_t layer) const {
        return materialize(model_, model_.topology.at(layer, Slot::attn_o), Slot::attn_o, layer);
    }

    Sums run(size_t layer, size_t places, std::span<const Unit> formers) {
        std::vector<Unit> heads(formers.begin(), formers.end());
        for (size_t u = heads.size(); u < places; ++u) heads.push_back({layer, static_cast<int64_t>(u)});
        auto pass = inputs_.attention_of(with_heads_of(model_, layer, heads), layer);
        Sums out;
        for (size_t s = 0; s < inputs_.sequences().size(); ++s) {
            const auto z = inputs_.run(pass, s);
            add_products(tokens(s), z, z, out.gram);
            add_products(tokens(s), own_[s], z, out.cross);
        }
        return out;
    }

    // Of all later units with the former at a place.
    Doubles cosines_of(size_t layer, Unit former, int64_t place, const Sums& sums) {
        const Doubles gram = block(sums.gram, place * d_, place * d_, d_);
        const Floats shared =
            comparison_.output_shared && !comparison_.aligned
                ? columns(output_of(former.layer), stride(former.layer), former.index * d_, d_)
                : Floats();
        Doubles out;
        for (const Later& later : later_) {
            const Doubles cross = block(sums.cross, later.unit.index * d_, place * d_, d_);
            double product = 0, energy = 0;
            if (comparison_.aligned) {
                product = energy = explained(gram, cross, later.metric);
            } else {
                const Floats own = columns(output_, stride(layer), later.unit.index * d_, d_);
                const Floats& used = shared.empty() ? own : shared;
                product = inner(products(model_.config.n_embd, own, used), cross);
                energy = inner(products(model_.config.n_embd, used, used), gram);
            }
            const double norms = std::sqrt(later.energy) * std::sqrt(energy);
            out.push_back(norms > 0 ? product / norms : 0);
        }
        return out;
    }

    // sum of |W M z'|^2 with M = cross gram^-1, the least squares from z' to z: what W z and the best W' z'
    // have in common.
    double explained(Doubles gram, const Doubles& cross, const Doubles& metric) const {
        double diagonal = 0;
        for (int64_t i = 0; i < d_; ++i) diagonal += gram[static_cast<size_t>(i * (d_ + 1))];
        for (int64_t i = 0; i < d_; ++i)
            gram[static_cast<size_t>(i * (d_ + 1))] += 1e-6 * diagonal / static_cast<double>(d_);
        Doubles map = cross;
        if (!(diagonal > 0) || !blas::solve_positive(d_, d_, gram.data(), map.data())) return 0;
        Doubles weighted(map.size());  // metric map
        blas::multiply(blas::Op::plain, blas::Op::plain, {d_, d_, d_}, map.data(), metric.data(),
                       weighted.data());
        return std::max(0.0, inner(weighted, cross));
    }

    const Model& model_;
    OutputComparison comparison_;
    Inputs inputs_;
    int64_t d_;
    std::vector<Floats> own_;  // z of the layer by sequence
    Floats output_;            // its attn.o
    std::vector<Later> later_;
};

// The layers' units, and those of all layers before.
std::map<size_t, std::vector<Unit>> by_layer(const std::vector<Unit>& units) {
    std::map<size_t, std::vector<Unit>> out;
    for (const Unit& unit : units) out[unit.layer].push_back(unit);
    return out;
}

nlohmann::json pairs_json(const std::vector<Replacement>& pairs) {
    nlohmann::json out = nlohmann::json::array();
    for (const auto& [unit, source] : pairs)
        out.push_back({unit.layer, unit.index, source.layer, source.index});
    return out;
}

// Arrays of the maps of one layer's pairs [pairs][d][d], and the parts that they explain.
Arrays solve_layer(const Model& model, size_t layer, const std::vector<Replacement>& pairs, Inputs& inputs,
                   size_t fit_sequences) {
    std::vector<Unit> heads;
    for (int64_t u = 0; u < model.config.n_head_kv_of(layer); ++u) heads.push_back({layer, u});
    for (const auto& [unit, source] : pairs) heads[static_cast<size_t>(unit.index)] = source;
    auto own = inputs.attention_of(model, layer),
         other = inputs.attention_of(with_heads_of(model, layer, heads), layer);
    const int64_t d = width_of(model), stride = model.config.n_head_kv_of(layer) * d;
    std::vector<LeastSquares> fit(pairs.size(), LeastSquares(d, d)), held_out = fit;
    for (size_t s = 0; s < inputs.sequences().size(); ++s) {
        const auto z = inputs.run(own, s), given = inputs.run(other, s);
        for (size_t i = 0; i < pairs.size(); ++i) {
            const Floats x = columns(given, stride, pairs[i].unit.index * d, d),
                         y = columns(z, stride, pairs[i].unit.index * d, d);
            (s < fit_sequences ? fit : held_out)[i].add(static_cast<int64_t>(x.size()) / d, x.data(),
                                                        y.data());
        }
    }
    Array maps{{d, d, static_cast<int64_t>(pairs.size())}, {}},
        parts{{static_cast<int64_t>(pairs.size())}, {}};
    const Floats zero(static_cast<size_t>(d * d));
    for (size_t i = 0; i < pairs.size(); ++i) {
        fit[i].sum_over_processes();
        held_out[i].sum_over_processes();
        const Ridged solved = solve_with_held_out(fit[i], held_out[i], zero);
        maps.values.insert(maps.values.end(), solved.weights.begin(), solved.weights.end());
        parts.values.push_back(
            solved.error_before > 0 ? static_cast<float>(1 - solved.error_after / solved.error_before) : 0);
    }
    return {{"maps", std::move(maps)}, {"explained", std::move(parts)}};
}

// The columns of the input of attn.o that a free map reads.
std::vector<int64_t> columns_of(const FreeMap::Values& values, int64_t inputs) {
    Floats numbers(static_cast<size_t>(inputs));
    std::iota(numbers.begin(), numbers.end(), 0.0F);
    if (values.features) numbers = values.features(1, numbers.data());
    return {numbers.begin(), numbers.end()};
}

// The free part of a layer's attn.o with the maps multiplied into it.
Floats mapped_output(const Model& model, size_t layer, const std::vector<HeadMap>& maps) {
    FreeMap::Values values = free_map(model, layer, Slot::attn_o)->values();
    const int64_t d = width_of(model), in = model.config.n_head_kv_of(layer) * d;
    const std::vector<int64_t> free = columns_of(values, in);
    const auto stride = static_cast<int64_t>(free.size());
    for (const HeadMap& map : maps) {
        const auto at = std::find(free.begin(), free.end(), map.unit.index * d) - free.begin();
        if (at + d > stride || free[static_cast<size_t>(at + d - 1)] != (map.unit.index + 1) * d - 1)
            fail(ErrorCode::unsupported, "direct_share",
                 "align: layer {}, unit {}: its columns of attn.o are used elsewhere", layer, map.unit.index);
        const Floats own = columns(values.prior, stride, at, d);
        Floats product(own.size());  // own map
        blas::multiply(blas::Op::plain, blas::Op::plain, {d, model.config.n_embd, d}, map.weights.data(),
                       own.data(), product.data());
        for (int64_t row = 0; row < model.config.n_embd; ++row)
            std::copy_n(product.begin() + row * d, d, values.prior.begin() + row * stride + at);
    }
    return std::move(values.prior);
}

}  // namespace

std::vector<double> head_output_cosines(const Model& model, const HeadUnits& units,
                                        const OutputComparison& comparison, const Step& step) {
    if (model.config.max_alibi_bias > 0)
        fail(ErrorCode::unsupported, "direct_share",
             "metric=output: with ALiBi, what a head computes depends on its number - use metric=weights");
    const auto layers = by_layer(units.stored());
    const size_t n = units.stored().size();
    std::vector<double> out(n * n);
    for (size_t i = 0; i < n; ++i) out[i * n + i] = 1;
    Comparison compared(model, comparison, step);
    Progress progress("comparing what heads compute", layers.size(), "layers");
    std::vector<Unit> formers;
    for (const auto& [layer, own] : layers) {
        if (!formers.empty()) {
            const auto found = step.work->results_of_all(
                {kCosines,
                 {{"model", step.identity_before},
                  {"units", comparison.key},
                  {"output_shared", comparison.output_shared},
                  {"aligned", comparison.aligned},
                  {"layer", layer}}},
                [&, at = layer, &later = own] {
                    const Doubles cosines = compared.of(at, later, formers);
                    return Arrays{
                        {"cosines",
                         {{static_cast<int64_t>(cosines.size())}, {cosines.begin(), cosines.end()}}}};
                });
            const Doubles cosines = lazy::numbers(found.at("cosines"));
            for (size_t i = 0; i < own.size(); ++i)
                std::copy_n(cosines.begin() + static_cast<ptrdiff_t>(i * formers.size()), formers.size(),
                            out.begin() + static_cast<ptrdiff_t>((formers.size() + i) * n));
        }
        formers.insert(formers.end(), own.begin(), own.end());
        progress.advance(1);
    }
    progress.finish();
    return out;
}

std::vector<HeadMap> solve_head_maps(const Model& model, const std::vector<Replacement>& replacements,
                                     const Step& step) {
    const HeadUnits units(model, kQkvo, kQkv);
    std::map<size_t, std::vector<Replacement>> layers;
    for (const auto& [unit, source] : replacements) {
        for (const Unit& same : units.equal(unit)) layers[same.layer].push_back({same, source});
    }
    const OwnSequences own = own_sequences(*step.calibration);
    Inputs inputs(model, own.tokens, step);
    std::vector<HeadMap> out;
    Progress progress("aligning heads", layers.size(), "layers");
    const auto elements = static_cast<ptrdiff_t>(width_of(model) * width_of(model));
    for (const auto& [layer, pairs] : layers) {
        const auto found = step.work->results_of_all(
            {kMaps, {{"model", step.identity_before}, {"layer", layer}, {"pairs", pairs_json(pairs)}}},
            [&, at = layer, &some = pairs] { return solve_layer(model, at, some, inputs, own.fit); });
        const Floats maps = lazy::floats(found.at("maps"), nullptr);
        const Doubles explained = lazy::numbers(found.at("explained"));
        for (size_t i = 0; i < pairs.size(); ++i) {
            const auto from = maps.begin() + static_cast<ptrdiff_t>(i) * elements;
            out.push_back({pairs[i].unit, {from, from + elements}, explained[i]});
        }
        progress.advance(1);
    }
    progress.finish();
    return out;
}

std::vector<bool> have_own_outputs(const Model& model, const HeadUnits& units) {
    const HeadUnits outputs(model, kQkvo, {Slot::attn_o});
    std::set<size_t> free;
    for (const auto& [layer, own] : by_layer(outputs.stored()))
        if (free_map(model, layer, Slot::attn_o)) free.insert(layer);
    std::vector<bool> out;
    for (const Unit& stored : units.stored()) {
        const auto& same = units.equal(stored);
        out.push_back(std::all_of(same.begin(), same.end(), [&](const Unit& unit) {
            return outputs.equal(unit).size() == 1 && free.contains(unit.layer);
        }));
    }
    return out;
}

Model with_head_maps(const Model& model, const std::vector<HeadMap>& maps,
                     std::vector<Requantized>& requantized) {
    std::map<size_t, std::vector<HeadMap>> layers;
    for (const HeadMap& map : maps) layers[map.unit.layer].push_back(map);
    const auto before = std::make_shared<const Model>(model);
    Model out = model;
    for (auto& [layer, own] : layers) {
        const auto free = free_map(*before, layer, Slot::attn_o);
        if (!free)
            fail(ErrorCode::unsupported, "direct_share", "align: layer {}: attn.o is used elsewhere", layer);
        const DType type = OutputSolver::solved_type(*before, *free, "same", free->inputs);
        const Tensor solved = lazy::computed(
            type, {free->inputs, free->outputs},
            [before, at = layer, some = std::move(own)] { return mapped_output(*before, at, some); });
        out = free->install(out, solved, requantized);
    }
    return out;
}

}  // namespace refold
