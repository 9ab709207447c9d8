#include "encoder/embedding_rule.h"

#include <algorithm>

#include "core/error.h"

namespace refold {
std::vector<float> EmbeddingRule::embedding(const Encoding& encoding, const std::string& family) const {
    if (of_model && encoding.pooled.empty())
        fail(ErrorCode::unsupported, "model", "'{}' has no pooler - use another pooling", family);
    std::vector<double> x(encoding.pooled.begin(), encoding.pooled.end());
    if (!of_model) x.clear();
    for (const RowPooling how : pooling) {
        const std::vector<double> part = pooled(how, encoding.last_hidden_state, width);
        x.insert(x.end(), part.begin(), part.end());
    }
    for (const EmbeddingStep& step : steps) {
        if (step.dense) {
            x = (*step.dense)(x);
        } else {
            scale_to_length_1(x);
        }
    }
    return {x.begin(), x.end()};
}

EmbeddingRule embedding_rule(const std::optional<EmbeddingConfig>& config, size_t width,
                             const EmbeddingChoice& choice) {
    EmbeddingRule out;
    out.width = width;
    out.of_model = choice.of_model;
    if (!out.of_model) {
        out.pooling = choice.pooling ? std::vector{*choice.pooling}
                      : config       ? config->pooling
                                     : std::vector{RowPooling::mean};
    }
    if (config) out.steps = config->steps;
    if (choice.normalize == false)
        std::erase_if(out.steps, [](const EmbeddingStep& step) { return !step.dense; });
    const bool ends_normalized = !out.steps.empty() && !out.steps.back().dense;
    if (choice.normalize.value_or(!config) && !ends_normalized) out.steps.emplace_back();
    out.size = out.width * std::max<size_t>(out.pooling.size(), 1);
    for (const EmbeddingStep& step : out.steps) {
        if (!step.dense) continue;
        if (step.dense->in != out.size) {
            fail(ErrorCode::usage, "embedding",
                 "the pooling gives {} elements, but the model's dense module takes {} - leave the "
                 "pooling out",
                 out.size, step.dense->in);
        }
        out.size = step.dense->out;
    }
    return out;
}

}  // namespace refold
