#include "model/adapter/adapter.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "model/adapter/modules.h"

namespace refold {
namespace {

// An adapter for the block of a looped model is one for all loops.
void repeat_in_loops(Adapter& adapter, const Topology& topology) {
    const auto loops = static_cast<size_t>(topology.loops), block = topology.layers.size() / loops;
    const auto in_block = [&](const Adapter::Term& t) { return t.layer == kWholeModel || t.layer < block; };
    if (!std::ranges::all_of(adapter.terms, in_block)) return;
    const size_t count = adapter.terms.size();
    for (size_t loop = 1; loop < loops; ++loop) {
        for (size_t i = 0; i < count; ++i) {
            if (adapter.terms[i].layer == kWholeModel) continue;
            adapter.terms.push_back(adapter.terms[i]);
            adapter.terms.back().layer += loop * block;
        }
    }
}

}  // namespace

Adapter load_adapter(const std::string& path, const Model& model) {
    Adapter adapter =
        std::filesystem::is_directory(path) ? load_peft(path, model) : load_lora_gguf(path, model);
    if (adapter.terms.empty()) fail(ErrorCode::input, "adapter", "{}: there is no LoRA in it", path);
    repeat_in_loops(adapter, model.topology);
    return adapter;
}

}  // namespace refold
