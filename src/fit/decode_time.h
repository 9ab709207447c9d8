// How long a model takes to decode a token on this machine, predicted from its types.
#pragma once

#include <compare>
#include <map>
#include <string>

#include "compress/method/work.h"
#include "model/model.h"

namespace refold {

// Tokens of the context for which the time of a decoded token is predicted: 512, or fewer where the model
// takes fewer.
int64_t decode_context(const Model& model);

// What products of this engine take on one machine.
struct TypeSpeeds {
    struct Kind {
        DType type;
        bool folded = false;
        auto operator<=>(const Kind&) const = default;
    };
    // Seconds for each weight that a decoded token is multiplied with. Norms, activations and the time
    // between products are spread over the weights of a layer.
    std::map<Kind, double> per_weight;
    double per_attention_flop = 0;  // of scores and values, in seconds

    // A kind that was not measured takes as long as the slowest one of as many bytes.
    double of(Kind kind) const;
};

// Predicted seconds of a decoded token at decode_context().
double token_seconds(const Model& model, const TypeSpeeds& speeds);
// By stored tensor, the weights that a decoded token is multiplied with: those of every layer that uses it.
// Tensors of which single rows are read are left out, as are vectors and small factors.
std::map<std::string, uint64_t> weights_multiplied(const Model& model);
// A tensor's kind, or that of a matrix of so many columns in another type.
TypeSpeeds::Kind kind_of(DType type, int64_t columns);

struct SpeedsFor {
    std::string identity;  // of the model: identity_of()
    std::string machine;   // name of its processor
    int threads = 0;
};
// Measures layers of the model with matrices of every type that `fit` chooses from, of the model's own types,
// and attention, in the engine: medians of steps, each in turn with the same layers in Q8_0, so that drift of
// the machine changes little. Takes seconds; kept in the work folder for the machine, the threads and the
// model.
TypeSpeeds measure_type_speeds(const Model& model, Work& work, const SpeedsFor& where);

}  // namespace refold
