#include "model/export/nanbeige.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "model/families/common/stock.h"
#include "model/stock.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

constexpr const char* kName = "nanbeige";
constexpr size_t kMaxLayers = 512;  // LLAMA_MAX_LAYERS

bool same_layer(const Model& model, size_t a, size_t b) {
    const ModelConfig& c = model.config;
    return model.topology.layers[a] == model.topology.layers[b] && c.window(a) == c.window(b) &&
           c.rotates(a) == c.rotates(b) && c.n_head_kv_of(a) == c.n_head_kv_of(b) &&
           c.n_ff_of(a) == c.n_ff_of(b);
}

// Layers of the shortest block that the model repeats; all of them when it repeats none.
size_t block_of(const Model& model) {
    const size_t layers = model.topology.layers.size();
    for (size_t block = 1; block < layers; ++block) {
        if (layers % block != 0) continue;
        bool repeats = true;
        for (size_t l = block; l < layers && repeats; ++l) repeats = same_layer(model, l, l % block);
        if (repeats) return block;
    }
    return layers;
}

// Takes the final norm away from between the loops, if it is there after each of them.
bool take_norms_between_loops(Topology& topology) {
    const size_t length = topology.layers.size() / static_cast<size_t>(topology.loops);
    std::vector<Slots*> last;
    for (size_t end = length; end < topology.layers.size(); end += length)
        last.push_back(&topology.layers[end - 1]);
    const auto final_norm = topology.globals.find(Slot::output_norm);
    const auto has_norm = [&](const Slots* slots) {
        const auto norm = slots->find(Slot::ffn_output_norm);
        return norm != slots->end() && norm->second == final_norm->second;
    };
    if (last.empty() || final_norm == topology.globals.end() || !std::ranges::all_of(last, has_norm))
        return false;
    for (Slots* slots : last) slots->erase(Slot::ffn_output_norm);
    return true;
}

// The part of the model that nanbeige's blocks do not have; empty if they have all.
std::string inexpressible(const Model& model) {
    const std::string family = model.family->name;
    if (family != "llama" && family != kName)
        return fmt::format("the blocks of family '{}' are not those of nanbeige", model.family->name);
    constexpr auto kBiases = slots_where(
        [](const SlotProperties& s) { return s.kind == SlotKind::bias && s.scope == SlotScope::layer; });
    for (const Slot slot : kBiases) {
        if (model.topology.has(0, slot)) return fmt::format("nanbeige's blocks have no {}", slot_name(slot));
    }
    if (model.config.activation != Activation::silu) return "nanbeige's activation is SiLU";
    if (model.topology.layers.size() > kMaxLayers)
        return fmt::format("llama.cpp runs at most {} layers", kMaxLayers);
    return "";
}

}  // namespace

LoopedStock looped_stock(const Model& given) {
    Model model = without_exits(given);
    const bool norms = take_norms_between_loops(model.topology);
    LoopedStock out;
    const size_t layers = model.topology.layers.size(), block = block_of(model);
    if (block == layers) {
        if (model.topology.loops > 1)
            out.reason = "the loops are not alike: LoRA, norms or an order of their own";
        return out;
    }
    out.loops = static_cast<int64_t>(layers / block);
    out.reason = inexpressible(model);
    if (!out.reason.empty()) return out;

    Model once = model;
    once.topology.layers.resize(block);
    once.topology.loops = 1;
    if (!once.config.heads_kv.empty()) once.config.heads_kv.resize(block);
    if (!once.config.ffs.empty()) once.config.ffs.resize(block);
    out.stock = for_stock(once);
    GgufMetadata& metadata = out.stock->model.metadata;
    metadata = renamed_metadata(metadata, out.stock->model.family->name, kName);
    metadata.set(std::string(kName) + ".num_loops", GgufValue::u32(static_cast<uint32_t>(out.loops)));
    metadata.set(std::string(kName) + ".skip_loop_final_norm", GgufValue::boolean(!norms));
    return out;
}

}  // namespace refold
