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

namespace refold {

static const char* kTopologyKey = "refold.topology";

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
    std::set<std::string> seen;
    for (const auto& slots : topology.positions) {
        for (const auto& [slot, expression] : slots) {
            if (!std::holds_alternative<Dense>(expression)) return true;
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

namespace {

std::string where(const Model& model, size_t position, Slot slot) {
    return position < model.topology.positions.size()
               ? fmt::format("position {} {}", position, slot_name(slot))
               : slot_name(slot);
}

const Tensor& find_tensor(const Model& model, const std::string& name, const std::string& place) {
    const auto found = model.tensors.find(name);
    if (found == model.tensors.end())
        fail(ErrorCode::input, "topology", "{}: refers to tensor '{}', which is not in the file", place,
             name);
    return found->second;
}

std::string shape_text(const std::vector<int64_t>& shape) {
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

void validate_dense(const Dense& dense, const Model& model, Slot slot, const std::string& place) {
    const Tensor& tensor = find_tensor(model, dense.tensor, place);
    const SlotShape shape = slot_shape(slot, model.config);
    if (tensor.row_elements() != shape.in || tensor.rows() != shape.out) {
        fail(ErrorCode::input, "topology", "{}: tensor '{}' has shape {}, expected [{}, {}]", place,
             dense.tensor, shape_text(tensor.shape), shape.in, shape.out);
    }
    if (is_vector(slot) && tensor.type != DType::F32) {
        fail(ErrorCode::unsupported, "topology", "{}: tensor '{}' has type {}, expected F32", place,
             dense.tensor, name(tensor.type));
    }
}

void validate_heads(const Heads& heads, const Model& model, Slot slot, const std::string& place) {
    if (!consists_of_heads(slot)) {
        fail(ErrorCode::input, "topology", "{}: only attn.q, attn.k, attn.v and attn.o consist of heads",
             place);
    }
    const int64_t head_dim = model.config.head_dim;
    const bool columns = heads_are_columns(slot);
    const SlotShape shape = slot_shape(slot, model.config);
    int64_t total = 0;
    for (const auto& run : heads.runs) {
        const Tensor& tensor = find_tensor(model, run.tensor, place);
        const int64_t along = columns ? tensor.row_elements() : tensor.rows();
        const int64_t across = columns ? tensor.rows() : tensor.row_elements();
        const int64_t expected = columns ? shape.out : shape.in;
        if (across != expected || along % head_dim != 0) {
            fail(ErrorCode::input, "topology",
                 "{}: tensor '{}' of shape {} does not consist of heads of {} x {}", place, run.tensor,
                 shape_text(tensor.shape), head_dim, expected);
        }
        const int64_t stored = along / head_dim;
        if (run.count <= 0 || run.first < 0 || run.first >= stored || run.count > stored - run.first) {
            fail(ErrorCode::input, "topology", "{}: heads {}..{} of tensor '{}', which has {}", place,
                 run.first, run.first + run.count - 1, run.tensor, stored);
        }
        const int64_t block = block_elements(tensor.type);
        if (columns && (run.first * head_dim % block != 0 || run.count * head_dim % block != 0)) {
            fail(ErrorCode::input, "topology",
                 "{}: columns of heads {}..{} of '{}' are not whole {} blocks of {}", place, run.first,
                 run.first + run.count - 1, run.tensor, name(tensor.type), block);
        }
        total += run.count;
    }
    if (const int64_t needed = (columns ? shape.in : shape.out) / head_dim; total != needed) {
        fail(ErrorCode::input, "topology", "{}: {} heads given, {} needed", place, total, needed);
    }
}

void validate_slots(const Model& model, const Slots& slots, const std::vector<SlotDescription>& descriptions,
                    size_t position) {
    for (const auto& description : descriptions) {
        if (description.required && !slots.contains(description.slot)) {
            fail(ErrorCode::input, "topology", "{} is missing", where(model, position, description.slot));
        }
    }
    for (const auto& [slot, expression] : slots) {
        const std::string place = where(model, position, slot);
        const bool known = std::any_of(descriptions.begin(), descriptions.end(),
                                       [&, s = slot](const SlotDescription& d) { return d.slot == s; });
        if (!known)
            fail(ErrorCode::input, "topology", "{}: not a slot of this place in family '{}'", place,
                 model.family->name);
        if (const auto* dense = std::get_if<Dense>(&expression)) {
            validate_dense(*dense, model, slot, place);
        } else {
            validate_heads(std::get<Heads>(expression), model, slot, place);
        }
    }
}

}  // namespace

void validate(const Model& model) {
    for (size_t p = 0; p < model.topology.positions.size(); ++p) {
        validate_slots(model, model.topology.positions[p], model.family->position_slots, p);
    }
    validate_slots(model, model.topology.globals, model.family->model_slots, model.topology.positions.size());
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
    const Topology implied = model.implied();
    if (model.topology == implied) {
        metadata.erase(kTopologyKey);
    } else {
        metadata.set(kTopologyKey, GgufValue::string(topology_to_json(model.topology, implied)));
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
