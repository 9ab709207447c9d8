#include "analyze/activations.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>

#include "core/error.h"
#include "core/group.h"
#include "core/progress.h"
#include "engine/single_sequence.h"

namespace refold {
namespace {

// The engine attends in one operation where a model is an encoder: its maps are made of queries and keys.
class EncoderMaps {
public:
    EncoderMaps(const Model& model, AttentionMaps& maps) : config_(model.config), maps_(maps) {}

    void see(const Tapped& seen) {
        if (seen.tap == Tap::q) {
            queries_.assign(seen.values.begin(), seen.values.end());
            return;
        }
        const auto tokens = static_cast<size_t>(seen.tokens),
                   head_dim = static_cast<size_t>(config_.head_dim);
        const auto heads = static_cast<size_t>(config_.n_head_of(seen.layer)),
                   per_group = static_cast<size_t>(config_.q_per_kv());
        const float scale = config_.attention_scale_of(seen.layer);
        probabilities_.resize(heads * tokens * tokens);
        for (size_t h = 0; h < heads; ++h) {
            for (size_t t = 0; t < tokens; ++t) {
                const float* query = queries_.data() + (t * heads + h) * head_dim;
                const std::span row(probabilities_.data() + (h * tokens + t) * tokens, tokens);
                for (size_t j = 0; j < tokens; ++j) {
                    const float* key =
                        seen.values.data() + (j * (heads / per_group) + h / per_group) * head_dim;
                    row[j] = scale * std::inner_product(query, query + head_dim, key, 0.0F);
                }
                softmax(row);
            }
        }
        maps_.see({seen.layer, Tap::probabilities, 0, seen.tokens, seen.tokens, probabilities_});
    }

private:
    static void softmax(std::span<float> scores) {
        const float largest = *std::max_element(scores.begin(), scores.end());
        float sum = 0;
        for (float& score : scores) sum += score = std::exp(score - largest);
        for (float& score : scores) score /= sum;
    }

    const ModelConfig& config_;
    AttentionMaps& maps_;
    std::vector<float> queries_, probabilities_;  // of the latest layer
};

std::shared_ptr<const Observer> observer_of(const Model& model, AttentionMaps* maps,
                                            ModuleSimilarities* modules) {
    auto observer = std::make_shared<Observer>();
    if (modules != nullptr) observer->taps.merge(modules->taps());
    if (maps != nullptr && model.config.causal) observer->taps.merge(maps->taps());
    if (maps != nullptr && !model.config.causal) {
        for (const auto& [layer, tap] : maps->taps())
            for (const Tap part : {Tap::q, Tap::k}) observer->taps.insert({layer, part});
        observer->see = [of_encoder = std::make_shared<EncoderMaps>(model, *maps)](const Tapped& seen) {
            of_encoder->see(seen);
        };
        return observer;
    }
    observer->see = [=](const Tapped& seen) {
        if (seen.tap == Tap::probabilities) return maps->see(seen);
        modules->see(seen);
    };
    return observer;
}

// Calls end(residual) after every step of a sequence.
void run_sequence(SingleSequence& sequence, std::span<const int32_t> tokens,
                  const std::function<void(std::span<const float>)>& end) {
    sequence.truncate(0);
    if (sequence.capabilities().causal)
        return sequence.evaluate_range(tokens, [&](size_t, std::span<const float> rows) { end(rows); });
    sequence.encode({tokens, {}, {}});
    end({});
}

}  // namespace

void need_decoder_for_modules(const Model& model) {
    if (!model.config.causal)
        fail(ErrorCode::unsupported, "analyze",
             "'{}' is an encoder: its modules are not compared - leave out --what modules, or --calib for "
             "what its weights tell",
             model.config.family);
}

void run_text(const Model& model, const std::vector<std::vector<int32_t>>& sequences,
              const PassOptions& options, AttentionMaps* maps, ModuleSimilarities* modules) {
    if (modules != nullptr) need_decoder_for_modules(model);
    if (!model.config.causal && (!model.config.windows.empty() || model.config.max_alibi_bias > 0))
        fail(ErrorCode::unsupported, "analyze", "'{}': maps of an encoder with windows or ALiBi",
             model.config.family);
    size_t longest = 1, tokens = 0;
    for (const auto& sequence : sequences) {
        longest = std::max(longest, sequence.size());
        tokens += sequence.size();
    }
    EngineOptions engine_options;
    engine_options.threads = options.threads;
    engine_options.f32 = options.f32;
    engine_options.kv = KvType::f32;
    engine_options.context = static_cast<int64_t>(longest);
    engine_options.chunk = options.step_tokens;
    // Run all layers, but compute no logits.
    if (model.config.causal) engine_options.range = LayerRange{0, model.topology.layers.size()};
    engine_options.observer = observer_of(model, maps, modules);
    SingleSequence sequence(model, engine_options);
    const Group& processes = group();
    // With fewer sequences than processes, every process runs the whole text.
    const bool split = processes.size() > 1 && sequences.size() >= static_cast<size_t>(processes.size());
    if (split) tokens /= static_cast<size_t>(processes.size());
    Progress progress("analyzing activations", tokens, "tokens");
    for (size_t s = 0; s < sequences.size(); ++s) {
        if (split && !processes.owns(s)) {
            if (maps != nullptr) maps->skip_sequence();
            continue;
        }
        const std::span<const int32_t> tokens_of_sequence(sequences[s]);
        run_sequence(sequence, tokens_of_sequence, [&](std::span<const float> rows) {
            if (maps != nullptr) maps->end_step();
            if (modules != nullptr) modules->end_step(rows);
        });
        if (maps != nullptr) maps->end_sequence();
        progress.advance(tokens_of_sequence.size());
    }
    if (split && maps != nullptr) maps->merge_over_processes();
    if (split && modules != nullptr) modules->merge_over_processes();
    progress.finish();
}

}  // namespace refold
