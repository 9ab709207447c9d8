#include "engine/engine.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "engine/checked_options.h"
#include "engine/cpu_level.h"
#include "engine/engines.h"

namespace refold {

std::unique_ptr<Engine> make_engine(const Model& model, const EngineOptions& options) {
    if (options.rope.active()) {
        EngineOptions others = options;
        others.rope = {};
        return make_engine(with_rope(model, options.rope), others);
    }
    choose_cpu_level();
    const EngineOptions complete = checked_options(options, model);
    if (complete.kind == EngineKind::torch) return make_torch_engine(model, complete);
    return complete.sequences == 1 && !complete.by_loop ? make_ggml_single_sequence_engine(model, complete)
                                                        : make_ggml_batched_engine(model, complete);
}

namespace {

struct NamedKvType {
    KvType type;
    const char* name;
    DType element;
};
constexpr std::array kKvTypes = {
    NamedKvType{KvType::f16, "f16", DType::F16}, NamedKvType{KvType::f32, "f32", DType::F32},
    NamedKvType{KvType::q8_0, "q8_0", DType::Q8_0}, NamedKvType{KvType::q4_0, "q4_0", DType::Q4_0}};

const NamedKvType& named(KvType type) {
    return *std::find_if(kKvTypes.begin(), kKvTypes.end(), [&](const auto& t) { return t.type == type; });
}

}  // namespace

const char* kv_type_name(KvType type) { return named(type).name; }

DType element_type(KvType type) { return named(type).element; }

std::optional<KvType> find_kv_type(std::string_view name) {
    for (const NamedKvType& known : kKvTypes)
        if (known.name == name) return known.type;
    return std::nullopt;
}

[[noreturn]] static void no_adapters() {
    fail(ErrorCode::unsupported, "engine",
         "adapters need the ggml engine for several sequences (EngineOptions::sequences)");
}
int32_t Engine::add_adapter(const Adapter&) { no_adapters(); }
void Engine::remove_adapter(int32_t) { no_adapters(); }
bool Engine::resize(int32_t /*sequence*/, int64_t /*tokens*/) { return false; }

void Engine::use_adapter(int32_t, int32_t adapter) {
    if (adapter >= 0) no_adapters();
}

[[noreturn]] static void no_saving() {
    fail(ErrorCode::unsupported, "engine",
         "saving tokens needs the ggml engine for several sequences (EngineOptions::sequences)");
}
uint64_t Engine::saved_bytes(int64_t) const { no_saving(); }
void Engine::save_tokens(int32_t, int64_t, const std::function<void(std::span<const std::byte>)>&) const {
    no_saving();
}
void Engine::load_tokens(int32_t, int64_t, std::span<const std::byte>) { no_saving(); }

size_t logits_of_step(int64_t n_vocab) {
    return std::max<size_t>(16, (64 << 20) / (static_cast<size_t>(n_vocab) * sizeof(float)));
}

}  // namespace refold
