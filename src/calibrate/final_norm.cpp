#include "calibrate/final_norm.h"

#include <cmath>

#include "model/materialize.h"

namespace refold {
namespace {

std::vector<float> vector_of(const Model& model, Slot slot) {
    const auto found = model.topology.globals.find(slot);
    return found == model.topology.globals.end() ? std::vector<float>()
                                                 : materialize(model, found->second, slot);
}

float mean_of(std::span<const float> x) {
    double sum = 0;
    for (const float value : x) sum += static_cast<double>(value);
    return static_cast<float>(sum / static_cast<double>(x.size()));
}

}  // namespace

FinalNorm::FinalNorm(const Model& model)
    : norm_(model.config.norm),
      eps_(model.config.norm_eps),
      gain_(vector_of(model, Slot::output_norm)),
      bias_(vector_of(model, Slot::output_norm_bias)) {}

float FinalNorm::scale(std::span<const float> residual) const {
    const double mean = norm_ == NormKind::layer ? static_cast<double>(mean_of(residual)) : 0;
    double squares = 0;
    for (const float x : residual) squares += std::pow(static_cast<double>(x) - mean, 2);
    return static_cast<float>(
        std::sqrt(squares / static_cast<double>(residual.size()) + static_cast<double>(eps_)));
}

std::vector<float> FinalNorm::operator()(std::span<const float> residuals) const {
    if (gain_.empty()) return {residuals.begin(), residuals.end()};
    const size_t width = gain_.size();
    std::vector<float> out;
    out.reserve(residuals.size());
    for (size_t at = 0; at < residuals.size(); at += width) {
        const auto x = residuals.subspan(at, width);
        const float mean = norm_ == NormKind::layer ? mean_of(x) : 0, divisor = scale(x);
        for (size_t i = 0; i < width; ++i)
            out.push_back((x[i] - mean) / divisor * gain_[i] + (bias_.empty() ? 0 : bias_[i]));
    }
    return out;
}

}  // namespace refold
