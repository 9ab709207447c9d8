#include "engine/warm_up.h"

namespace refold {

void warm_up(Engine& engine, std::span<const int32_t> adapters) {
    const std::optional<int32_t> sequence = engine.open(1);
    if (!sequence) return;
    const int32_t loops = engine.capabilities().loops;
    const auto run = [&] {
        for (int32_t loop = 0; loop < loops; ++loop) {
            const Row row{.sequence = *sequence,
                          .loop = loop,
                          .token = loop == 0 ? 0 : -1,
                          .logits = loop + 1 == loops};
            engine.step({.rows = {&row, 1}});
        }
    };
    run();
    if (!adapters.empty()) {
        engine.truncate(*sequence, 0);
        engine.use_adapter(*sequence, adapters.front());
        run();
    }
    engine.close(*sequence);
}

}  // namespace refold
