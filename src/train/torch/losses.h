// Losses over the vocabulary, computed in chunks of tokens, so that the logits of a whole batch never exist.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace refold {

// Logits [n, n_vocab] of final hidden states [n, n_embd]: TorchModel::logits.
using LogitsOf = std::function<at::Tensor(const at::Tensor& hidden)>;

struct VocabularyLoss {
    at::Tensor sum;     // over scored tokens; differentiable with respect to `hidden` and the output weights
    int64_t count = 0;  // number of scored tokens
};

// Cross entropy of targets [n] (int64) over rows with scored [n] (bool).
VocabularyLoss cross_entropy(const LogitsOf& logits, const at::Tensor& hidden, const at::Tensor& targets,
                             const at::Tensor& scored, int64_t chunk = 512);

// Divergences from a teacher's distribution (Ko et al. 2024, section 2; Wen et al. 2023).
enum class Divergence {
    forward_kl,  // KL(teacher || student)
    reverse_kl,  // KL(student || teacher)
    jensen_shannon,
    total_variation,
};
// Logits [count, n_vocab] of rows first, first + 1, ... of the batch, without gradients.
using TeacherLogits = std::function<at::Tensor(int64_t first, int64_t count)>;
// Divides the logits of both sides by `temperature` and multiplies the result by its square.
VocabularyLoss divergence(Divergence kind, const LogitsOf& logits, const at::Tensor& hidden,
                          const TeacherLogits& teacher, const at::Tensor& scored, double temperature = 1,
                          int64_t chunk = 512);

}  // namespace refold
