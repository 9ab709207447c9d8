#include "engine/device_split.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "core/error.h"
#include "core/text.h"

namespace refold {
namespace {

uint64_t resident_bytes(const Tensor& tensor, bool f32) {
    return f32 ? static_cast<uint64_t>(tensor.elements()) * sizeof(float) : tensor.bytes();
}

uint64_t total(const std::vector<uint64_t>& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
}

// Parts of a whole, in order.
std::vector<double> parts_of(std::span<const Device> devices) {
    std::vector<double> parts;
    const bool known = std::ranges::all_of(devices, [](const Device& device) { return device.free > 0; });
    for (const Device& device : devices) parts.push_back(known ? static_cast<double>(device.free) : 1.0);
    const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
    for (double& part : parts) part /= sum;
    return parts;
}

// The first device that has not enough memory.
std::optional<size_t> too_small(const DeviceSplit& split, std::span<const Device> devices) {
    for (size_t d = 0; d < devices.size(); ++d)
        if (!devices[d].is_cpu() && devices[d].free > 0 && split.needed[d] > devices[d].free) return d;
    return std::nullopt;
}

}  // namespace

int64_t LayerNeeds::stored_layers() const {
    return std::ranges::count_if(with, [](const auto& other) { return !other; });
}

LayerNeeds layer_needs(const Model& model, const EngineOptions& options, int64_t loops) {
    const Topology& topology = model.topology;
    const ModelConfig& config = model.config;
    const size_t n_layer = topology.layers.size();
    LayerNeeds out{std::vector<uint64_t>(n_layer), std::vector<uint64_t>(n_layer), {}, 0};
    std::map<std::string, size_t> owners;  // of the tensors
    const int64_t tokens = options.kv_tokens > 0 ? options.kv_tokens : options.context,
                  rows = (config.n_prefix +
                          (options.eviction.active() ? options.eviction.rows(options.context) : tokens)) *
                         loops;
    for (size_t p = 0; p < n_layer; ++p) {
        std::map<size_t, uint64_t> by_owner;
        for (const auto& [slot, expression] : topology.layers[p]) {
            if (!is_matrix(slot)) continue;
            for (const std::string& name : tensors_of(expression)) {
                const auto [owner, is_new] = owners.try_emplace(name, p);
                const uint64_t bytes = resident_bytes(model.tensor(name), options.f32);
                by_owner[owner->second] += bytes;
                if (is_new) out.weights[p] += bytes;
            }
        }
        const auto most =
            std::ranges::max_element(by_owner, {}, [](const auto& entry) { return entry.second; });
        const bool alone = most == by_owner.end() || most->first == p;
        out.with.push_back(alone ? std::nullopt : std::optional(most->first));
        const AttentionSource& source = topology.source(p);
        if (!config.causal || !topology.has(p, Slot::attn_o) || source.kv) continue;
        const int64_t heads = config.n_head_kv_of(p) * (source.probabilities ? 1 : 2);
        out.cache[p] =
            row_bytes(options.f32 ? DType::F32 : element_type(options.kv), rows * heads * config.head_dim);
    }
    for (const auto& [slot, expression] : topology.globals) {
        if (!is_matrix(slot)) continue;
        for (const std::string& name : tensors_of(expression))
            if (owners.try_emplace(name, n_layer).second)
                out.output += resident_bytes(model.tensor(name), options.f32);
    }
    return out;
}

DeviceSplit split_layers(const LayerNeeds& needs, std::span<const Device> devices, int64_t gpu_layers) {
    const size_t cpu = devices.size(), n_layer = needs.with.size();
    const int64_t stored = needs.stored_layers(),
                  on_cpu = gpu_layers < 0 ? 0 : std::max<int64_t>(0, stored - gpu_layers);
    // Layers and the output with all that lies with them.
    std::vector<uint64_t> bytes(n_layer);
    std::vector<size_t> lead(n_layer);
    for (size_t p = 0; p < n_layer; ++p) {
        lead[p] = needs.with[p] ? lead[*needs.with[p]] : p;
        bytes[lead[p]] += needs.weights[p] + needs.cache[p];
    }
    uint64_t whole = needs.output;
    int64_t number = 0;
    for (size_t p = 0; p < n_layer; ++p)
        if (lead[p] == p && number++ >= on_cpu) whole += bytes[p];
    const std::vector<double> parts = parts_of(devices);
    DeviceSplit out{std::vector<size_t>(n_layer, cpu), stored == on_cpu ? cpu : cpu - 1,
                    std::vector<uint64_t>(cpu + 1)};
    size_t device = 0;
    double begin = 0, end = parts.front() * static_cast<double>(whole);
    number = 0;
    for (size_t p = 0; p < n_layer; ++p) {
        if (lead[p] != p) {
            out.layers[p] = out.layers[lead[p]];
            continue;
        }
        if (number++ >= on_cpu) {
            const auto size = static_cast<double>(bytes[p]);
            while (begin + size / 2 > end && device + 1 < cpu)
                end += parts[++device] * static_cast<double>(whole);
            begin += size;
            out.layers[p] = device;
        }
        out.needed[out.layers[p]] += bytes[p];
    }
    out.needed[out.output] += needs.output;
    return out;
}

void check_room(const LayerNeeds& needs, const DeviceSplit& split, std::span<const Device> devices) {
    const auto short_of = too_small(split, devices);
    if (!short_of) return;
    int64_t fits = needs.stored_layers() - 1;
    while (fits > 0 && too_small(split_layers(needs, devices, fits), devices)) --fits;
    const Device& device = devices[*short_of];
    fail(ErrorCode::io, "engine",
         "{} has {} of free memory, and its part of the model needs {} (all parts: {} of weights, {} of KV "
         "cache) - {}",
         device.name, format_bytes(device.free), format_bytes(split.needed[*short_of]),
         format_bytes(total(needs.weights) + needs.output), format_bytes(total(needs.cache)),
         fits > 0 ? fmt::format("--gpu-layers {} of {} fits", fits, needs.stored_layers())
                  : "not even one layer fits; use --device cpu");
}

}  // namespace refold
