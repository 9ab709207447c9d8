#include "calibrate/output_layer.h"

#include <cmath>

#include "core/error.h"
#include "linalg/blas.h"
#include "model/materialize.h"

namespace refold {

bool OutputLayer::possible(const Model& model) {
    const Slots& globals = model.topology.globals;
    return globals.contains(Slot::output) && globals.contains(Slot::output_norm) &&
           !globals.contains(Slot::head_dense);
}

OutputLayer::OutputLayer(const Model& model) : norm_(model), softcap_(model.config.logit_softcap) {
    const Slots& globals = model.topology.globals;
    if (!possible(model))
        fail(ErrorCode::unsupported, "compress",
             "{}: the next token's distribution is not the output of a final norm", model.label);
    weights_ = materialize(model, globals.at(Slot::output), Slot::output);
    if (const auto bias = globals.find(Slot::output_bias); bias != globals.end())
        bias_ = materialize(model, bias->second, Slot::output_bias);
    if (model.config.norm_head) divide_by_row_norms();
    for (std::vector<float>* values : {&weights_, &bias_})
        for (float& x : *values) x *= model.config.logit_scale;
}

void OutputLayer::divide_by_row_norms() {
    const size_t width = norm_.gain().size();
    const Tensor rows{DType::F32,
                      {static_cast<int64_t>(width), vocabulary()},
                      std::as_bytes(std::span<const float>(weights_)),
                      {}};
    const std::vector<float> inverse = inverse_row_norms(rows);
    for (size_t i = 0; i < weights_.size(); ++i) weights_[i] *= inverse[i / width];
}

std::vector<float> OutputLayer::logits(std::span<const float> residuals) const {
    const auto width = static_cast<int64_t>(norm_.gain().size());
    const auto rows = static_cast<int64_t>(residuals.size()) / width;
    const auto normed = norm_(residuals);
    std::vector<float> out(static_cast<size_t>(rows * vocabulary()));
    // Row major here, column major there: logits^T = W h^T.
    blas::multiply(blas::Op::transposed, blas::Op::plain, {vocabulary(), rows, width}, weights_.data(),
                   normed.data(), out.data());
    for (size_t at = 0; at < out.size(); at += static_cast<size_t>(vocabulary())) {
        for (size_t i = 0; i < static_cast<size_t>(vocabulary()); ++i) {
            float& logit = out[at + i];
            if (!bias_.empty()) logit += bias_[i];
            if (softcap_ > 0) logit = softcap_ * std::tanh(logit / softcap_);
        }
    }
    return out;
}

}  // namespace refold
