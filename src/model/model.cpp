#include "model/model.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <tuple>

#include "core/error.h"
#include "core/progress.h"
#include "model/fused_qkv.h"
#include "model/hf/checkpoint.h"
#include "model/hf/shapes.h"

namespace refold {

static const char* kTopologyKey = "refold.topology";
static const char* kSizesKey = "refold.sizes";

int64_t Tensor::rows() const {
    int64_t rows = 1;
    for (size_t d = 1; d < shape.size(); ++d) rows *= shape[d];
    return rows;
}

TensorBytes::TensorBytes(const Tensor& tensor) {
    if (tensor.produce) {
        owned_ = tensor.produce();
        view_ = owned_;
    } else {
        view_ = tensor.mapped;
    }
}

const Tensor& Model::tensor(const std::string& name) const {
    const auto found = tensors.find(name);
    if (found == tensors.end()) fail(ErrorCode::input, "model", "{}: no tensor '{}'", label, name);
    return found->second;
}

Topology Model::implied() const {
    return implied_topology(*family, topology.positions.size(),
                            [&](const std::string& name) { return tensors.contains(name); });
}

template <typename Visit>
static void for_each_expression(const Topology& topology, Visit&& visit) {
    for (const auto& slots : topology.positions) {
        for (const auto& [slot, expression] : slots) visit(slot, expression);
    }
    for (const auto& [slot, expression] : topology.globals) visit(slot, expression);
}

void Model::drop_unreferenced() {
    std::set<std::string> used;
    for_each_expression(topology, [&](Slot, const Expression& expression) {
        for (const auto& name : tensors_of(expression)) used.insert(name);
    });
    std::erase_if(tensors, [&](const auto& entry) { return !used.contains(entry.first); });
}

bool Model::has_sharing() const {
    if (!config.heads_kv.empty() || !config.ffs.empty() || config.n_prefix > 0) return true;
    if (!topology.sources.empty()) return true;
    for (const auto& [slot, expression] : topology.globals) {
        if (!std::holds_alternative<Dense>(expression)) return true;
    }
    std::set<std::string> seen;
    for (const auto& slots : topology.positions) {
        for (const auto& [slot, expression] : slots) {
            if (!std::holds_alternative<Dense>(expression) || is_compensation(slot)) return true;
            if (!seen.insert(std::get<Dense>(expression).tensor).second) return true;
        }
    }
    return false;
}

void SourceFiles::release(std::span<const std::byte> part) const {
    for (const auto& file : files_) {
        const auto all = file->bytes();
        if (part.data() >= all.data() && part.data() < all.data() + all.size()) file->release(part);
    }
}

Model load_model(const std::string& path) {
    if (is_bare_config(path)) return load_hf_shapes(path);
    return std::filesystem::is_directory(path) ? load_hf_model(path) : load_gguf_model(path);
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

// Every stored layer is a position unless the topology says otherwise.
Model load_gguf_model(const std::string& path) {
    Model model;
    const std::shared_ptr<const GgufFile> file = GgufFile::open(path);
    model.source = std::make_shared<const SourceFiles>(
        std::vector{std::shared_ptr<const MappedFile>(file, file->file())});
    model.label = path;
    model.metadata = file->metadata();
    try {
        model.family = &find_family(model.metadata.string("general.architecture"));
        model.config = model.family->read_config(model.metadata);
        for (const auto& tensor : file->tensors()) {
            model.tensors[tensor.name] = Tensor{tensor.type, tensor.shape, tensor.data, {}};
        }
        const auto has_tensor = [&](const std::string& name) { return model.tensors.contains(name); };
        const uint64_t layers = model.metadata.integer(std::string(model.family->name) + ".block_count");
        if (layers == 0 || layers > 4096)
            fail(ErrorCode::input, "model", "key '{}.block_count' is out of range: {}", model.family->name,
                 layers);
        split_fused_qkv(model, layers);
        const Topology implied = implied_topology(*model.family, layers, has_tensor);
        model.topology = model.metadata.has(kTopologyKey)
                             ? topology_from_json(model.metadata.string(kTopologyKey), implied)
                             : implied;
        if (model.metadata.has(kSizesKey))
            sizes_from_json(model.metadata.string(kSizesKey), model.topology.positions.size(), model.config);
        const std::string embedding = tensor_name(*model.family, Slot::token_embd, 0);
        if (const auto found = model.tensors.find(embedding);
            found != model.tensors.end() && found->second.shape.size() == 2) {
            model.config.n_vocab = found->second.shape[1];
        }
        validate(model);
        check_all_are_used(model);
    } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{} (in '{}')", error.what(), path));
    }
    return model;
}

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

void save_model(const Model& model, const std::string& path, bool overwrite) {
    validate(model);
    GgufMetadata metadata = model.metadata;
    // As a reader implies it, who has only the number of stored blocks.
    const uint64_t blocks =
        metadata.integer(std::string(model.family->name) + ".block_count", model.topology.positions.size());
    const Topology implied = implied_topology(
        *model.family, blocks, [&](const std::string& name) { return model.tensors.contains(name); });
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
    uint64_t total = 0;
    std::vector<GgufOutputTensor> outputs;
    const std::map<std::string, Tensor> tensors = with_fused_qkv(model);
    for (const auto& name : natural_order(tensors)) {
        const Tensor& tensor = tensors.at(name);
        total += tensor.bytes();
        outputs.push_back({name, tensor.type, tensor.shape,
                           [&tensor](const auto& sink) { sink(TensorBytes(tensor).bytes()); }});
    }
    Progress progress("writing " + path, total, "bytes");
    write_gguf(path, overwrite, metadata, outputs,
               [&](uint64_t bytes, const std::string& tensor) { progress.advance(bytes, tensor); });
    progress.finish();
}

}  // namespace refold
