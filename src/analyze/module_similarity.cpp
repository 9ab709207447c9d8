#include "analyze/module_similarity.h"

namespace refold {

bool ModuleSimilarities::has_attention(size_t layer) const {
    return model_.topology.has(layer, Slot::attn_o) || model_.topology.has(layer, Slot::attn_comp);
}

std::set<std::pair<size_t, Tap>> ModuleSimilarities::taps() const {
    std::set<std::pair<size_t, Tap>> taps;
    for (size_t p = 0; p < layers_.size(); ++p) {
        for (const Tap tap : {Tap::layer_input, Tap::attn_output, Tap::residual, Tap::ffn_output})
            taps.insert({p, tap});
    }
    return taps;
}

void ModuleSimilarities::see(const Tapped& seen) {
    const auto width = static_cast<size_t>(seen.features);
    ModuleSimilarity& own = layers_[seen.layer];
    switch (seen.tap) {
        case Tap::layer_input:
            if (seen.layer > 0) add_row_cosines(input_, seen.values, width, layers_[seen.layer - 1].layer);
            input_.assign(seen.values.begin(), seen.values.end());
            residual_ = input_;
            return;
        case Tap::attn_output:
            // Otherwise Tap::residual gives it, with compensation.
            if (model_.config.parallel_residual)
                add_residual_cosines(input_, seen.values, width, own.attention);
            return;
        case Tap::residual:
            if (has_attention(seen.layer)) add_row_cosines(input_, seen.values, width, own.attention);
            residual_.assign(seen.values.begin(), seen.values.end());
            return;
        case Tap::ffn_output: return add_residual_cosines(residual_, seen.values, width, own.ffn);
        default: return;
    }
}

void ModuleSimilarities::merge_over_processes() {
    std::vector<RunningMean*> means;
    for (ModuleSimilarity& own : layers_)
        for (RunningMean* mean : {&own.attention, &own.ffn, &own.layer}) means.push_back(mean);
    refold::merge_over_processes(means);
}

void ModuleSimilarities::end_step(std::span<const float> residual) {
    add_row_cosines(input_, residual, static_cast<size_t>(model_.config.n_embd), layers_.back().layer);
}

}  // namespace refold
