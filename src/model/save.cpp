#include "model/save.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "core/error.h"
#include "core/mapped_files.h"
#include "core/progress.h"
#include "model/config_difference.h"
#include "model/finite.h"
#include "model/folded.h"
#include "model/fused_maps.h"
#include "model/gguf_model.h"
#include "model/metadata_keys.h"
#include "model/sizes.h"
#include "model/validate.h"

namespace refold {

// token_embd first, then blocks in numeric order, as converters write them.
static std::vector<std::string> natural_order(const std::map<std::string, Tensor>& tensors) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors) names.push_back(name);
    const auto key = [](const std::string& name) {
        const bool block = name.starts_with("blk.");
        return std::tuple(block                            ? 1
                          : name.starts_with("token_embd") ? 0
                                                           : 2,
                          block ? std::atoi(name.c_str() + 4) : 0, name);
    };
    std::sort(names.begin(), names.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
    return names;
}

// What a reader gets from these keys and shapes must be the model again. Nothing is written before.
static void check_reads_back(const Model& model, const GgufMetadata& metadata,
                             std::map<std::string, Tensor> tensors) {
    for (auto& [name, tensor] : tensors) tensor.shape = folded_shape(tensor);
    const auto refuse = [](const std::string& difference) {
        fail(ErrorCode::internal, "save", "the file would not hold the model: {} - nothing was written",
             difference);
    };
    try {
        const Model back = gguf_model(metadata, std::move(tensors));
        for (const auto& [name, tensor] : model.tensors) {
            const auto found = back.tensors.find(name);
            if (found == back.tensors.end() || found->second.elements() != tensor.elements())
                refuse(fmt::format("a reader does not find tensor '{}' of {} elements", name,
                                   tensor.elements()));
        }
        // What llama.cpp knows under another name is described by other keys, in loops maybe.
        if (back.family != model.family) return;
        const size_t layers = model.topology.layers.size();
        if (back.topology != model.topology) refuse("a reader finds another topology");
        if (const auto found = config_difference(back.config, model.config, layers); !found.empty())
            refuse("a reader finds " + found);
    } catch (const Error& error) {
        if (error.code() == ErrorCode::internal) throw;
        refuse(error.what());
    }
}

void save_model(const Model& model, const std::string& path, bool overwrite) {
    validate(model);
    GgufMetadata metadata = model.metadata;
    metadata.set(kVersionKey, GgufValue::string(REFOLD_VERSION));
    // As a reader implies it, who has only the number of stored blocks.
    const uint64_t blocks =
        metadata.integer(std::string(model.family->name) + ".block_count", model.topology.layers.size());
    const Topology implied =
        implied_topology(*model.family, model.config, blocks,
                         [&](const std::string& name) { return model.tensors.contains(name); });
    if (model.topology == implied) {
        metadata.erase(kTopologyKey);
    } else {
        metadata.set(kTopologyKey, GgufValue::string(topology_to_json(model.topology, implied)));
    }
    if (const std::string sizes = sizes_to_json(model.config); sizes.empty()) {
        metadata.erase(kSizesKey);
    } else {
        metadata.set(kSizesKey, GgufValue::string(sizes));
    }
    const std::map<std::string, Tensor> tensors = with_fused_maps(model);
    if (const std::string folded = folded_to_json(tensors); folded.empty()) {
        metadata.erase(kFoldedKey);
    } else {
        metadata.set(kFoldedKey, GgufValue::string(folded));
    }
    check_reads_back(model, metadata, tensors);
    uint64_t total = 0;
    std::vector<GgufOutputTensor> outputs;
    for (const auto& name : natural_order(tensors)) {
        const Tensor& tensor = tensors.at(name);
        total += tensor.bytes();
        outputs.push_back({name, tensor.type, folded_shape(tensor),
                           [&tensor, name](const auto& sink) { sink(finite_bytes(tensor, name).bytes()); }});
    }
    Progress progress("writing " + path, total, "bytes");
    write_gguf(path, overwrite, metadata, outputs, [&](uint64_t bytes, const std::string& tensor) {
        progress.advance(bytes, tensor);
        if (model.source) check_unchanged(model.source->files());
    });
    progress.finish();
}

}  // namespace refold
