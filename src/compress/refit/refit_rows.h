// Rows of the least-squares problems of refit: the inputs of a module's output map, and the outputs that it
// should add to the residual stream.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "calibrate/aligned_streams.h"
#include "calibrate/residual_stream.h"
#include "compress/refit/free_map.h"
#include "compress/refit/norm_gain.h"
#include "linalg/least_squares.h"
#include "model/model.h"

namespace refold {

// The last linear map of a module, and the norm after it.
struct OutputMap {
    Slot matrix, bias, post_norm;
    Tap inner, projected, output;
};
inline constexpr std::array<OutputMap, 2> kOutputMaps = {
    OutputMap{Slot::attn_o, Slot::attn_o_bias, Slot::attn_post_norm, Tap::attn_inner, Tap::attn_projected,
              Tap::attn_output},
    OutputMap{Slot::ffn_down, Slot::ffn_down_bias, Slot::ffn_post_norm, Tap::ffn_inner, Tap::ffn_projected,
              Tap::ffn_output}};

// The one whose inputs these are, or null.
inline const OutputMap* output_map_after(Tap inner) {
    for (const OutputMap& module : kOutputMaps)
        if (module.inner == inner) return &module;
    return nullptr;
}

// Rows for the map W: inputs x (and a 1 for the bias) and targets y. With a norm after the map, y = gain * W
// x / divisor; the divisor is taken from the original model, so that the problem is linear. Where
// attn.comp_norm adds to W x before that norm, rows need Tap::attn_input.
class MapRows {
public:
    // `output` and `map` must outlive this object.
    MapRows(const Model& model, size_t layer, const OutputMap& output, const FreeMap& map, bool with_bias);

    int64_t inputs() const { return map_.inputs + (with_bias_ ? 1 : 0); }
    std::vector<float> prior() const;  // [outputs x inputs()]
    void add(const AlignedStreams::Rows& rows, LeastSquares& sums) const;

private:
    std::vector<float> inputs_of(const AlignedStreams::Rows& rows) const;
    std::vector<float> divisors(const AlignedStreams::Rows& rows) const;
    void undo_norm(const AlignedStreams::Rows& rows, const std::vector<float>& divisor,
                   std::vector<float>& y) const;
    void remove_fixed(const AlignedStreams::Rows& rows, std::vector<float>& y) const;

    float eps_, scale_;
    const OutputMap& output_;
    const FreeMap& map_;
    FreeMap::Values values_;
    bool with_bias_;
    std::vector<float> gain_, bias_, compensation_;  // empty: none
};

// Rows for the gain of the norm after the map, with the present map.
void add_gain_rows(const OutputMap& output, const ModelConfig& config, const AlignedStreams::Rows& rows,
                   GainSquares& sums);

}  // namespace refold
