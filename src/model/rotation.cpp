#include "model/rotation.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace refold {
namespace {

// YaRN (Peng et al., 2023): pairs with more than beta_fast rotations over the original context keep their
// frequency, pairs with fewer than beta_slow are interpolated, and pairs in between mix both. The bounds are
// rounded to whole pairs, as in ggml.
class YarnMix {
public:
    YarnMix(const Rope& rope, double base) {
        const auto pair_with_turns = [&](double turns) {
            return rope.dims * std::log(rope.original_context / (turns * 2 * std::numbers::pi)) /
                   (2 * std::log(base));
        };
        first_ = std::max(0.0, std::floor(pair_with_turns(rope.beta_fast)));
        last_ = std::min(rope.dims - 1.0, std::ceil(pair_with_turns(rope.beta_slow)));
    }
    // Weight of the unscaled frequency, 0 to 1.
    double kept(int pair) const {
        return 1.0 - std::clamp((pair - first_) / std::max(0.001, last_ - first_), 0.0, 1.0);
    }

private:
    double first_ = 0, last_ = 0;
};

}  // namespace

std::vector<double> rotation_frequencies(const Rope& rope, int64_t length, std::span<const float> divisors) {
    const double base = rope.base_for(length);
    std::vector<double> out(static_cast<size_t>(rope.dims / 2));
    for (size_t i = 0; i < out.size(); ++i) {
        const double plain = std::pow(base, -2.0 * static_cast<double>(i) / rope.dims) /
                             (divisors.empty() ? 1.0 : static_cast<double>(divisors[i]));
        const double scaled = plain * rope.frequency_scale;
        const double kept =
            rope.ext_factor == 0 ? 0.0 : rope.ext_factor * YarnMix(rope, base).kept(static_cast<int>(i));
        out[i] = scaled * (1 - kept) + plain * kept;
    }
    return out;
}

double rotation_magnitude(const Rope& rope) {
    double magnitude = rope.attention_factor;
    if (rope.ext_factor != 0) magnitude *= 1.0 - 0.1 * std::log(static_cast<double>(rope.frequency_scale));
    return magnitude;
}

}  // namespace refold
