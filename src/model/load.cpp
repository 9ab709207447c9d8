#include "model/load.h"

#include <filesystem>

#include "core/error.h"
#include "io/gguf_parts.h"
#include "model/folded.h"
#include "model/fused_maps.h"
#include "model/gguf_model.h"
#include "model/hf/checkpoint.h"
#include "model/hf/shapes.h"
#include "model/metadata_keys.h"
#include "model/row_parts.h"
#include "model/sizes.h"
#include "model/validate.h"

namespace refold {

Model load_model(const std::string& path) {
    if (is_bare_config(path)) return load_hf_shapes(path);
    return std::filesystem::is_directory(path) ? load_hf_model(path) : load_gguf_model(path);
}

// llama.cpp has gains of heads as rows of heads, and biases of experts as rows of experts.
static void flatten_vectors(Model& model, size_t layers) {
    for (const SlotDescription& slot : model.family->layer_slots) {
        const bool gains = properties(slot.slot).kind == SlotKind::norm_gain && properties(slot.slot).units;
        if (!gains && !(is_vector(slot.slot) && belongs_to_experts(slot.slot))) continue;
        for (size_t l = 0; l < layers; ++l) {
            const auto found = model.tensors.find(tensor_name(slot, l));
            if (found != model.tensors.end()) found->second.shape = {found->second.elements()};
        }
    }
}

// A tensor that nothing reads belongs to a variant of the family that would be computed wrongly.
static void check_all_are_used(const Model& model) {
    Model used = model;
    used.drop_unreferenced();
    for (const auto& [name, tensor] : model.tensors) {
        if (!used.tensors.contains(name) && !name.ends_with(".attn_rot_embd")) {
            fail(ErrorCode::unsupported, "model", "tensor '{}' is not one that family '{}' has here", name,
                 model.family->name);
        }
    }
}

// llama.cpp's files of looped models say how often all layers run, and whether the final norm follows each
// loop or the last one only.
static Topology in_loops(Topology topology, const Model& model) {
    const std::string family = model.family->name, key = family + ".num_loops";
    const uint64_t loops = model.metadata.integer(key, 1);
    constexpr uint64_t kMostLoops = 64;
    if (loops < 1 || loops > kMostLoops)
        fail(ErrorCode::input, "model", "key '{}' must be 1 to {}, got {}", key, kMostLoops, loops);
    const std::vector<Slots> block = topology.layers;
    const auto norm = topology.globals.find(Slot::output_norm);  // that it is there is validated later
    const bool norms =
        norm != topology.globals.end() && !model.metadata.boolean(family + ".skip_loop_final_norm", false);
    for (uint64_t i = 1; i < loops; ++i) {
        if (norms) topology.layers.back()[Slot::ffn_output_norm] = norm->second;
        topology.layers.insert(topology.layers.end(), block.begin(), block.end());
    }
    topology.loops = static_cast<int64_t>(loops);
    return topology;
}

// Every stored layer is a layer unless the topology says otherwise.
static void describe(Model& model) {
    model.family = &find_family(model.metadata.string("general.architecture"));
    model.config = model.family->read_config(model.metadata);
    if (model.metadata.has(kFoldedKey)) unfold_shapes(model.metadata.string(kFoldedKey), model.tensors);
    const auto has_tensor = [&](const std::string& name) { return model.tensors.contains(name); };
    const uint64_t layers = model.metadata.integer(std::string(model.family->name) + ".block_count");
    if (layers == 0 || layers > 4096)
        fail(ErrorCode::input, "model", "key '{}.block_count' is out of range: {}", model.family->name,
             layers);
    split_fused_maps(model, layers);
    flatten_vectors(model, layers);
    const Topology implied = implied_topology(*model.family, model.config, layers, has_tensor);
    model.topology = model.metadata.has(kTopologyKey)
                         ? topology_from_json(model.metadata.string(kTopologyKey), implied)
                         : in_loops(implied, model);
    model.config.rope.long_factors = model.topology.globals.contains(Slot::rope_freqs_long);
    if (model.metadata.has(kSizesKey))
        sizes_from_json(model.metadata.string(kSizesKey), model.topology.layers.size(), model.config);
    const std::string embedding = tensor_name(*model.family, Slot::token_embd, 0);
    if (const auto found = model.tensors.find(embedding);
        found != model.tensors.end() && found->second.shape.size() == 2) {
        model.config.n_vocab = found->second.shape[1];
    }
    if (const auto rows = rows_in_parts(model, Slot::token_embd)) model.config.n_vocab = *rows;
    validate(model);
    check_row_parts(model);
    check_all_are_used(model);
}

Model gguf_model(GgufMetadata metadata, std::map<std::string, Tensor> tensors) {
    Model model;
    model.metadata = std::move(metadata);
    model.tensors = std::move(tensors);
    describe(model);
    return model;
}

Model load_gguf_model(const std::string& path) {
    Model model;
    const GgufParts parts = open_gguf_parts(path);
    std::vector<std::shared_ptr<const MappedFile>> files;
    for (const auto& file : parts.files) {
        files.emplace_back(file, file->file());
        for (const auto& tensor : file->tensors())
            model.tensors[tensor.name] = Tensor{tensor.type, tensor.shape, tensor.data, {}};
    }
    model.source = std::make_shared<const SourceFiles>(std::move(files));
    model.label = path;
    model.metadata = parts.metadata;
    try {
        describe(model);
    } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{} (in '{}')", error.what(), path));
    }
    return model;
}

}  // namespace refold
