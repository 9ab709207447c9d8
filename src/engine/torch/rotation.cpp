#include "engine/torch/rotation.h"

#include <cmath>

#include "model/rotation.h"

namespace refold {

Angles rotation_angles(const Rope& rope, std::span<const int32_t> positions, int64_t length,
                       std::span<const float> frequencies) {
    const double magnitude = rotation_magnitude(rope);
    const std::vector<double> per_token = rotation_frequencies(rope, length, frequencies);
    Angles angles;
    for (const int32_t position : positions) {
        for (const double frequency : per_token) {
            angles.cosines.push_back(magnitude * std::cos(position * frequency));
            angles.sines.push_back(magnitude * std::sin(position * frequency));
        }
    }
    return angles;
}

}  // namespace refold
