#include "analyze/activations.h"

#include <algorithm>
#include <memory>

#include "core/error.h"
#include "core/group.h"
#include "core/progress.h"
#include "engine/single_sequence.h"

namespace refold {
namespace {

std::shared_ptr<const Observer> observer_of(AttentionMaps* maps, ModuleSimilarities* modules) {
    auto observer = std::make_shared<Observer>();
    if (maps != nullptr) observer->taps.merge(maps->taps());
    if (modules != nullptr) observer->taps.merge(modules->taps());
    observer->see = [=](const Tapped& seen) {
        if (seen.tap == Tap::probabilities) return maps->see(seen);
        modules->see(seen);
    };
    return observer;
}

}  // namespace

void need_decoder(const Model& model) {
    if (!model.config.causal)
        fail(ErrorCode::unsupported, "analyze",
             "'{}' is an encoder: activations can be analyzed of decoders only - leave --calib out for what "
             "its weights tell",
             model.config.family);
}

void run_text(const Model& model, const std::vector<std::vector<int32_t>>& sequences,
              const PassOptions& options, AttentionMaps* maps, ModuleSimilarities* modules) {
    need_decoder(model);
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
    engine_options.range = LayerRange{0, model.topology.layers.size()};
    engine_options.observer = observer_of(maps, modules);
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
        sequence.truncate(0);
        sequence.evaluate_range(tokens_of_sequence, [&](size_t, std::span<const float> rows) {
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
