#include "compress/rewrite/channels.h"

#include <set>
#include <utility>

#include "compress/method/selection.h"
#include "compress/rewrite/modules.h"
#include "core/error.h"

namespace refold {
namespace {

void cut_tensor(Model& model, const std::string& name, bool columns, const std::vector<int64_t>& kept,
                std::vector<Requantized>& requantized) {
    const Tensor tensor = model.tensor(name);
    const Cut cut{columns, 1, kept};
    const DType type =
        fits_blocks(cut, tensor.type) ? tensor.type : requantized_type(static_cast<int64_t>(kept.size()));
    Tensor rest = keep_parts(model, tensor, cut, type);
    if (type != tensor.type) {
        const auto before = static_cast<size_t>(tensor.row_elements());
        requantized.push_back({name, tensor.type, type, tensor.bytes() / before * kept.size(), rest.bytes()});
    }
    model.tensors[name] = std::move(rest);
}

constexpr auto kChannelSlots =
    slots_where([](const SlotProperties& s) { return s.units && unit_extent(s.slot) == Extent::n_ff; });

}  // namespace

std::vector<TiedLayers> ffns_of(const Model& model, const std::vector<Slot>& slots,
                                const std::vector<size_t>& layers, const char* method) {
    for (const size_t p : layers) {
        for (const Slot slot : slots) {
            if (model.topology.has(p, slot) && !std::holds_alternative<Dense>(model.topology.at(p, slot)))
                fail(ErrorCode::unsupported, method,
                     "layer {}: {} is made of factors, which have no channels - leave the layer out with "
                     "'layers', or do this step first",
                     p, slot_name(slot));
        }
    }
    std::vector<TiedLayers> all = tied_layers(model, layers, slots);
    std::set<std::string> seen;
    for (const TiedLayers& tied : all) {
        for (const Slot slot : slots) {
            const std::string& name = std::get<Dense>(model.topology.at(tied.front(), slot)).tensor;
            if (!seen.insert(name).second)
                fail(ErrorCode::unsupported, method,
                     "layer {}: {} is shared with a layer whose other FFN weights are not, so the channels "
                     "of one cannot go without the other's - do this step first",
                     tied.front(), slot_name(slot));
        }
    }
    return all;
}

void keep_channels(Model& model, const TiedLayers& tied, const std::vector<int64_t>& kept,
                   std::vector<Requantized>& requantized) {
    std::set<std::pair<std::string, bool>> tensors;  // name, and whether channels are its columns
    for (const size_t p : tied) {
        if (kept.empty()) {
            remove_ffn(model, p);
            continue;
        }
        set_ff(model, p, static_cast<int64_t>(kept.size()));
        for (const Slot slot : kChannelSlots) {
            if (!model.topology.has(p, slot)) continue;
            tensors.emplace(std::get<Dense>(model.topology.at(p, slot)).tensor,
                            properties(slot).units == UnitAxis::columns);
        }
    }
    for (const auto& [name, columns] : tensors) cut_tensor(model, name, columns, kept, requantized);
}

int64_t channel_parameters(const Model& model, size_t layer) {
    int64_t out = 0;
    for (const Slot slot : kChannelSlots) {
        if (!model.topology.has(layer, slot)) continue;
        const SlotShape shape = slot_shape(slot, model.config, layer);
        out += shape.in * shape.out / model.config.n_ff_of(layer);
    }
    return out;
}

}  // namespace refold
