#include "model/activation.h"

#include <algorithm>

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
    {"gelu_new", Activation::gelu_tanh},
    {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"gelu_fast", Activation::gelu_tanh},
    {"relu", Activation::relu},
    {"relu2", Activation::relu_squared},
    {"swiglu_clamped", Activation::swiglu_clamped},
};

}  // namespace

Activation activation_from_name(const std::string& name, const char* where) {
    std::string known;
    for (const auto& entry : kActivations) {
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

}  // namespace refold
