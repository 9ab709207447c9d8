#include "compress/refit/refit_rows.h"

#include <cmath>
#include <span>

#include "linalg/blas.h"
#include "model/materialize.h"

namespace refold {
namespace {

using Floats = std::vector<float>;

// The outputs of the module after which the residual stream is the original's, here or at the goal, before
// ModelConfig::residual_scale.
Floats targets_of(const OutputMap& output, float residual_scale, const AlignedStreams::Rows& rows) {
    const bool attention = output.matrix == Slot::attn_o;
    Floats y(rows.goal.begin(), rows.goal.end());
    if (y.empty()) y = attention ? rows.original.between() : rows.original.out;
    if (!rows.before.empty()) {
        for (size_t i = 0; i < y.size(); ++i) y[i] = (y[i] - rows.before[i]) / residual_scale;
        return y;
    }
    const Floats now = attention ? rows.modified.between() : rows.modified.out;
    const auto added = rows.modified.tapped(output.output);
    for (size_t i = 0; i < y.size(); ++i) y[i] = (y[i] + added[i] - now[i]) / residual_scale;
    return y;
}

// The root mean square of each row, by which a norm divides.
Floats divisors_of(std::span<const float> rows, size_t width, float eps) {
    Floats out;
    for (size_t at = 0; at < rows.size(); at += width) {
        double squares = 0;
        for (size_t i = at; i < at + width; ++i)
            squares += static_cast<double>(rows[i]) * static_cast<double>(rows[i]);
        out.push_back(
            static_cast<float>(std::sqrt(squares / static_cast<double>(width) + static_cast<double>(eps))));
    }
    return out;
}

void divide_rows(const Floats& divisors, Floats& values) {
    const size_t width = values.size() / divisors.size();
    for (size_t i = 0; i < values.size(); ++i) values[i] /= divisors[i / width];
}

}  // namespace

MapRows::MapRows(const Model& model, size_t layer, const OutputMap& output, const FreeMap& map,
                 bool with_bias)
    : eps_(model.config.norm_eps),
      scale_(model.config.residual_scale),
      output_(output),
      map_(map),
      values_(map.values()),
      with_bias_(with_bias) {
    const auto vector = [&](Slot slot) {
        if (!model.topology.has(layer, slot)) return Floats();
        return materialize(model, model.topology.at(layer, slot), slot, layer);
    };
    gain_ = vector(output.post_norm);
    bias_ = vector(output.bias);
    if (output.matrix == Slot::attn_o) compensation_ = vector(Slot::attn_comp_norm);
}

Floats MapRows::prior() const {
    if (!with_bias_) return values_.prior;
    Floats out;
    for (size_t r = 0; r < static_cast<size_t>(map_.outputs); ++r) {
        const float* row = values_.prior.data() + r * static_cast<size_t>(map_.inputs);
        out.insert(out.end(), row, row + map_.inputs);
        out.push_back(bias_.empty() ? 0.0F : bias_[r]);
    }
    return out;
}

void MapRows::add(const AlignedStreams::Rows& rows, LeastSquares& sums) const {
    Floats x = inputs_of(rows), y = targets_of(output_, scale_, rows);
    const Floats divisor = gain_.empty() ? Floats() : divisors(rows);
    if (!divisor.empty()) undo_norm(rows, divisor, y);
    remove_fixed(rows, y);
    if (!divisor.empty()) {
        divide_rows(divisor, x);
        divide_rows(divisor, y);
    }
    sums.add(rows.tokens, x.data(), y.data());
}

Floats MapRows::inputs_of(const AlignedStreams::Rows& rows) const {
    const auto inner = rows.modified.tapped(output_.inner);
    Floats z =
        values_.features ? values_.features(rows.tokens, inner.data()) : Floats(inner.begin(), inner.end());
    if (!with_bias_) return z;
    Floats out;
    out.reserve(z.size() + static_cast<size_t>(rows.tokens));
    for (int64_t t = 0; t < rows.tokens; ++t) {
        out.insert(out.end(), z.begin() + t * map_.inputs, z.begin() + (t + 1) * map_.inputs);
        out.push_back(1.0F);
    }
    return out;
}

// The divisor of the original's norm for each token; the modified model's when the original has no such
// module.
Floats MapRows::divisors(const AlignedStreams::Rows& rows) const {
    auto projected = rows.original.tapped(output_.projected);
    if (projected.empty()) projected = rows.modified.tapped(output_.projected);
    return divisors_of(projected, static_cast<size_t>(map_.outputs), eps_);
}

// Inverts gain * y / divisor.
void MapRows::undo_norm(const AlignedStreams::Rows& rows, const Floats& divisor, Floats& y) const {
    const auto now = rows.modified.tapped(output_.projected);
    float largest = 0;
    for (const float g : gain_) largest = std::max(largest, std::abs(g));
    for (size_t i = 0; i < y.size(); ++i) {
        const float g = gain_[i % gain_.size()];
        // A channel that the norm suppresses tells nothing about the map, which keeps its value there.
        y[i] = std::abs(g) > 1e-3F * largest ? y[i] * divisor[i / gain_.size()] / g : now[i];
    }
}

void MapRows::remove_fixed(const AlignedStreams::Rows& rows, Floats& y) const {
    if (!values_.fixed.empty()) {
        const auto inner = rows.modified.tapped(output_.inner);
        const auto in = static_cast<int64_t>(inner.size()) / rows.tokens;
        blas::multiply(blas::Op::transposed, blas::Op::plain, {map_.outputs, rows.tokens, in},
                       values_.fixed.data(), inner.data(), y.data(), 1, -1);
    }
    if (!compensation_.empty()) {
        const auto x = rows.modified.tapped(Tap::attn_input);
        blas::multiply(blas::Op::transposed, blas::Op::plain, {map_.outputs, rows.tokens, map_.outputs},
                       compensation_.data(), x.data(), y.data(), 1, -1);
    }
    if (with_bias_ || bias_.empty()) return;
    for (size_t i = 0; i < y.size(); ++i) y[i] -= bias_[i % bias_.size()];
}

void add_gain_rows(const OutputMap& output, const ModelConfig& config, const AlignedStreams::Rows& rows,
                   GainSquares& sums) {
    const auto projected = rows.modified.tapped(output.projected);
    const size_t width = projected.size() / static_cast<size_t>(rows.tokens);
    Floats normed(projected.begin(), projected.end());
    divide_rows(divisors_of(projected, width, config.norm_eps), normed);
    sums.add(normed, targets_of(output, config.residual_scale, rows));
}

}  // namespace refold
