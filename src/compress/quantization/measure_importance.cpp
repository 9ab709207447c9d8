#include "compress/quantization/measure_importance.h"

#include <algorithm>
#include <cmath>

#include "calibrate/residual_stream.h"
#include "compress/quantization/input_uses.h"
#include "core/error.h"
#include "core/group.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "linalg/blas.h"
#include "model/materialize.h"

namespace refold {
namespace {

class Importance {
public:
    explicit Importance(const Model& model) : model_(model) {}

    // Rows of inputs [tokens, in] of a slot.
    void add(const Expression& expression, Slot slot, std::span<const float> rows, int64_t in) {
        if (rows.empty()) return;
        std::visit([&](const auto& e) { add_to(e, slot, rows, in); }, expression);
    }

    ImportanceMatrix result() {
        ImportanceMatrix matrix;
        for (auto& [name, sums] : sums_) {
            group().sum(sums);
            auto& entry = matrix.tensors[name];
            const double count = sums.back();
            sums.pop_back();
            entry.count = std::llround(count);
            for (const double sum : sums) entry.mean_squares.push_back(static_cast<float>(sum / count));
            for (const float mean : entry.mean_squares) {
                if (!std::isfinite(mean))
                    fail(ErrorCode::input, "imatrix", "{}: the inputs of '{}' are not finite", model_.label,
                         name);
            }
        }
        return matrix;
    }

private:
    // Sums by column, then the number of tokens.
    std::vector<double>& sums_of(const std::string& tensor, int64_t tokens) {
        auto& sums = sums_[tensor];
        sums.resize(static_cast<size_t>(model_.tensor(tensor).row_elements()) + 1);
        sums.back() += static_cast<double>(tokens);
        return sums;
    }
    static std::vector<double> squares(std::span<const float> rows, int64_t width) {
        std::vector<double> out(static_cast<size_t>(width));
        for (size_t i = 0; i < rows.size(); ++i) {
            const auto value = static_cast<double>(rows[i]);
            out[i % out.size()] += value * value;
        }
        return out;
    }
    void add_rows(const std::string& tensor, std::span<const float> rows, int64_t in) {
        auto& sums = sums_of(tensor, static_cast<int64_t>(rows.size()) / in);
        const auto added = squares(rows, in);
        for (size_t i = 0; i < added.size(); ++i) sums[i] += added[i];
    }
    void add_to(const Dense& e, Slot, std::span<const float> rows, int64_t in) {
        add_rows(e.tensor, rows, in);
    }
    void add_to(const Heads& e, Slot slot, std::span<const float> rows, int64_t in) {
        if (!heads_are_columns(slot)) {
            for (const std::string& tensor : tensors_of(e)) add_rows(tensor, rows, in);
            return;
        }
        for (const std::string& tensor : tensors_of(e))
            sums_of(tensor, static_cast<int64_t>(rows.size()) / in);
        const auto added = squares(rows, in);
        size_t at = 0;
        for (const HeadRun& run : e.runs) {
            auto& sums = sums_of(run.tensor, 0);
            const auto first = static_cast<size_t>(run.first * model_.config.head_dim);
            for (size_t i = 0; i < static_cast<size_t>(run.count * model_.config.head_dim); ++i)
                sums[first + i] += added[at++];
        }
    }
    void add_to(const LowRank& e, Slot, std::span<const float> rows, int64_t in) {
        if (e.transposed) return;
        add_rows(e.v, rows, in);
        const auto v = floats_of(model_, e.v);
        const auto rank = static_cast<int64_t>(v.size()) / in,
                   tokens = static_cast<int64_t>(rows.size()) / in;
        std::vector<float> inner(static_cast<size_t>(tokens * rank));
        // Row major here, column major there.
        blas::multiply(blas::Op::transposed, blas::Op::plain, {rank, tokens, in}, v.data(), rows.data(),
                       inner.data());
        if (!e.scale.empty()) {
            const auto scales = floats_of(model_, e.scale);
            for (size_t i = 0; i < inner.size(); ++i)
                inner[i] *= scales[static_cast<size_t>(e.row * rank) + i % static_cast<size_t>(rank)];
        }
        add_rows(e.u, inner, rank);
    }
    void add_to(const Tucker&, Slot, std::span<const float>, int64_t) {}
    void add_to(const RowParts& e, Slot, std::span<const float> rows, int64_t in) {
        for (const std::string& part : e.parts) add_rows(part, rows, in);
    }
    void add_to(const Plus& e, Slot slot, std::span<const float> rows, int64_t in) {
        std::visit([&](const auto& base) { add_to(base, slot, rows, in); }, e.base);
        add_to(e.term, slot, rows, in);
    }

    const Model& model_;
    std::map<std::string, std::vector<double>> sums_;
};

// The residual stream after the final norm.
std::vector<float> final_norm(const Model& model, std::span<const float> residual) {
    const Slots& globals = model.topology.globals;
    std::vector<float> out(residual.begin(), residual.end());
    if (!globals.contains(Slot::output_norm)) return out;
    const auto gain = materialize(model, globals.at(Slot::output_norm), Slot::output_norm);
    std::vector<float> bias(gain.size());
    if (globals.contains(Slot::output_norm_bias))
        bias = materialize(model, globals.at(Slot::output_norm_bias), Slot::output_norm_bias);
    const size_t n = gain.size();
    for (size_t at = 0; at + n <= out.size(); at += n) {
        const std::span x = std::span(out).subspan(at, n);
        double mean = 0, squares = 0;
        if (model.config.norm == NormKind::layer)
            for (const float value : x) mean += static_cast<double>(value) / static_cast<double>(n);
        for (const float value : x)
            squares += std::pow(static_cast<double>(value) - mean, 2) / static_cast<double>(n);
        const double scale = 1 / std::sqrt(squares + static_cast<double>(model.config.norm_eps));
        for (size_t i = 0; i < n; ++i)
            x[i] = static_cast<float>((static_cast<double>(x[i]) - mean) * scale) * gain[i] + bias[i];
    }
    return out;
}

}  // namespace

ImportanceMatrix measure_importance(const Model& model, const Calibration& calibration, int threads) {
    const Slots& globals = model.topology.globals;
    if (!model.config.causal || globals.contains(Slot::head_dense))
        fail(ErrorCode::unsupported, "imatrix", "{}: importance matrices are measured on decoders",
             model.label);
    const OwnSequences own = own_sequences(calibration);
    const size_t layers = model.topology.layers.size();
    Progress progress("importance", layers, "layers");
    ResidualStream stream(model, own.tokens, calibration.options.length, threads);
    Importance importance(model);
    for (size_t layer = 0; layer < layers; ++layer) {
        check_interrupt();
        std::vector<Tap> taps;
        const Slots& slots = model.topology.layers[layer];
        for (const auto& [slot, expression] : slots) {
            if (const auto tap = is_matrix(slot) ? input_tap(slot) : std::nullopt)
                if (std::find(taps.begin(), taps.end(), *tap) == taps.end()) taps.push_back(*tap);
        }
        std::vector<std::vector<float>> after;
        {
            ResidualStream::Pass pass(stream, model, layer, taps);
            for (size_t s = 0; s < stream.sequences(); ++s) {
                const auto out = pass.run(s);
                after.emplace_back(out.begin(), out.end());
                for (const auto& [slot, expression] : slots) {
                    if (!is_matrix(slot)) continue;
                    const auto tap = input_tap(slot);
                    importance.add(expression, slot, tap ? pass.tapped(*tap) : out,
                                   slot_shape(slot, model.config, layer).in);
                }
            }
        }
        if (model.topology.sources.empty())
            stream.advance(layer, std::move(after));
        else
            stream.advance(model, layer);
        progress.advance(1);
    }
    if (globals.contains(Slot::output)) {
        for (size_t s = 0; s < stream.sequences(); ++s)
            importance.add(globals.at(Slot::output), Slot::output, final_norm(model, stream.residual(s)),
                           model.config.n_embd);
    }
    progress.finish();
    ImportanceMatrix matrix = importance.result();
    for (const auto& text : calibration.texts) matrix.datasets.push_back(text.name);
    matrix.chunks = static_cast<int64_t>(calibration.fit.size() + calibration.held_out.size());
    matrix.chunk_size = calibration.options.length;
    return matrix;
}

}  // namespace refold
