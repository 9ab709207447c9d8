#include "model/activation.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace refold {
namespace {

struct ActivationName {
    const char* name;
    Activation activation;
};
// The first name of an activation is the one that is written.
constexpr ActivationName kActivations[] = {
    {"silu", Activation::silu},
    {"swish", Activation::silu},
    {"gelu", Activation::gelu},
    {"gelu_python", Activation::gelu},
    {"gelu_new", Activation::gelu_tanh},
    {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"gelu_fast", Activation::gelu_tanh},
    {"gelu_accurate", Activation::gelu_tanh},
    {"gelu_python_tanh", Activation::gelu_tanh},
    {"relu", Activation::relu},
    {"relu2", Activation::relu_squared},
    {"swiglu_clamped", Activation::swiglu_clamped},
};

}  // namespace

Activation activation_from_name(const std::string& name, const char* where) {
    std::string known;
    for (const auto& entry : kActivations) {
        if (entry.activation == Activation::swiglu_clamped) continue;  // gpt-oss has it without naming it
        if (name == entry.name) return entry.activation;
        known += (known.empty() ? "" : ", ") + std::string(entry.name);
    }
    fail(ErrorCode::unsupported, "model", "{}: activation '{}' is not supported; known: {}", where, name,
         known);
}

const char* activation_name(Activation activation) {
    return std::find_if(std::begin(kActivations), std::end(kActivations),
                        [&](const ActivationName& entry) { return entry.activation == activation; })
        ->name;
}

float gated(Activation activation, float gate, float up) {
    const auto sigmoid = [](float x) { return 1 / (1 + std::exp(-x)); };
    switch (activation) {
        case Activation::silu: return gate * sigmoid(gate) * up;
        case Activation::gelu: return 0.5F * gate * (1 + std::erf(gate / std::numbers::sqrt2_v<float>)) * up;
        case Activation::gelu_tanh: {
            // sqrt(2 / pi)
            const float inner = 0.7978845608F * (gate + 0.044715F * gate * gate * gate);
            return 0.5F * gate * (1 + std::tanh(inner)) * up;
        }
        case Activation::relu: return std::max(gate, 0.0F) * up;
        case Activation::relu_squared: {
            const float positive = std::max(gate, 0.0F);
            return positive * positive * up;
        }
        case Activation::tanh: return std::tanh(gate) * up;
        case Activation::swiglu_clamped: {
            const float cut = std::min(gate, kSwigluLimit);
            return cut * sigmoid(kSwigluAlpha * cut) * (std::clamp(up, -kSwigluLimit, kSwigluLimit) + 1);
        }
    }
    return 0;
}

}  // namespace refold
