#include "analyze/activations.h"

#include <algorithm>
#include <memory>

#include "core/error.h"
#include "core/group.h"
#include "core/progress.h"
#include "engine/engine.h"

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
             "'{}' is an encoder: activations can be analysed of decoders only - leave --calib out for what "
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
    engine_options.chunk = options.piece;
    // All positions, but no logits.
    engine_options.range = PositionRange{0, model.topology.positions.size()};
    engine_options.observer = observer_of(maps, modules);
    Engine engine(model, engine_options);
    const Group& processes = group();
    // Too few for all: every process sees the whole text.
    const bool split = processes.size() > 1 && sequences.size() >= static_cast<size_t>(processes.size());
    if (split) tokens /= static_cast<size_t>(processes.size());
    Progress progress("analysing activations", tokens, "tokens");
    for (size_t s = 0; s < sequences.size(); ++s) {
        if (split && !processes.owns(s)) {
            if (maps != nullptr) maps->skip_sequence();
            continue;
        }
        const auto& sequence = sequences[s];
        engine.truncate(0);
        engine.evaluate_range(std::span<const int32_t>(sequence), [&](size_t, std::span<const float> rows) {
            engine.pause();  // its threads would wait busily while BLAS works
            if (maps != nullptr) maps->end_step();
            if (modules != nullptr) modules->end_step(rows);
        });
        if (maps != nullptr) maps->end_sequence();
        progress.advance(sequence.size());
    }
    if (split && maps != nullptr) maps->merge_over_processes();
    if (split && modules != nullptr) modules->merge_over_processes();
    progress.finish();
}

}  // namespace refold
