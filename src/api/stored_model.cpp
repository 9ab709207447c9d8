#include "refold/stored_model.h"

#include <algorithm>
#include <map>
#include <thread>

#include "api/config_json.h"
#include "api/impl.h"
#include "compress/compress.h"
#include "core/error.h"
#include "hub/resolve.h"
#include "model/hf/export.h"
#include "model/load.h"
#include "model/materialize.h"
#include "model/metadata_keys.h"
#include "model/quantized.h"
#include "model/row_parts.h"
#include "model/save.h"
#include "model/validate.h"
#include "refold/refold.h"

namespace refold {

using Bytes = std::vector<std::byte>;

struct StoredModel::Impl {
    std::string path;
    Model model;
    // Of the tensors that were replaced, whose Tensor::mapped is a view of them.
    std::map<std::string, std::shared_ptr<const Bytes>> replaced;
};

StoredModel::StoredModel() : impl_(std::make_unique<Impl>()) {}
StoredModel::StoredModel(const std::string& model) : StoredModel() {
    impl_->path = resolve_model(model);
    impl_->model = load_model(impl_->path);
}
StoredModel::~StoredModel() = default;
StoredModel::StoredModel(StoredModel&&) noexcept = default;
StoredModel& StoredModel::operator=(StoredModel&&) noexcept = default;

StoredModel StoredModel::copy() const {
    StoredModel out;
    *out.impl_ = *impl_;
    return out;
}

const std::string& StoredModel::path() const { return impl_->path; }
ModelInfo StoredModel::info() const { return info_of(impl_->model); }
std::string StoredModel::config() const { return to_json(impl_->model.config); }
std::string StoredModel::provenance() const { return impl_->model.metadata.string(kProvenanceKey, ""); }

std::string StoredModel::topology() const { return topology_to_json(impl_->model.topology, {}); }

std::vector<std::string> StoredModel::tensor_names() const {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : impl_->model.tensors) names.push_back(name);
    return names;
}

StoredTensor StoredModel::tensor(const std::string& name) const {
    const Tensor& tensor = impl_->model.tensor(name);
    return {refold::name(tensor.type), {tensor.shape.rbegin(), tensor.shape.rend()}, tensor.bytes()};
}

TensorView StoredModel::view(const std::string& name) const {
    const Tensor& tensor = impl_->model.tensor(name);
    if (const auto found = impl_->replaced.find(name); found != impl_->replaced.end())
        return {tensor.mapped, found->second};
    if (!tensor.produce && !impl_->model.shapes_only) return {tensor.mapped, impl_->model.source};
    const TensorBytes computed(tensor);
    const auto bytes = std::make_shared<const Bytes>(computed.bytes().begin(), computed.bytes().end());
    return {*bytes, bytes};
}

std::vector<float> StoredModel::values(const std::string& name) const {
    return floats_of(impl_->model, name);
}

StoredMatrix StoredModel::matrix(std::optional<size_t> layer, const std::string& slot_name) const {
    const Model& model = impl_->model;
    const Slot slot = slot_from_name(slot_name);
    if (layer && *layer >= model.topology.layers.size())
        fail(ErrorCode::usage, "model", "{}: layer {} does not exist, there are {}", slot_name, *layer,
             model.topology.layers.size());
    const size_t at = layer.value_or(kWholeModel);
    const Slots& slots = layer ? model.topology.layers[at] : model.topology.globals;
    const auto found = slots.find(slot);
    if (found == slots.end())
        fail(ErrorCode::input, "model", "{}: no slot '{}' {}", model.label, slot_name,
             layer ? fmt::format("in layer {}", *layer) : "of the whole model");
    validate(model);
    const SlotShape shape = slot_shape(slot, model.config, at);
    return {shape.out, shape.in, materialize(model, found->second, slot, at)};
}

// Throws unless the tensor can be made: a type, and a shape of whole blocks.
static Tensor described(const std::string& name, const std::string& type, const std::vector<int64_t>& shape) {
    Tensor tensor;
    tensor.type = quantization_type(type);
    tensor.shape.assign(shape.rbegin(), shape.rend());
    constexpr int64_t kMost = int64_t{1} << 40;
    int64_t elements = 1;
    for (const int64_t size : shape) {
        if (size < 1 || size > kMost / elements)
            fail(ErrorCode::input, "model", "tensor '{}': got {} in its shape, expected sizes of at least 1",
                 name, size);
        elements *= size;
    }
    if (shape.empty() || shape.size() > 4)
        fail(ErrorCode::input, "model", "tensor '{}': got {} dimensions, expected 1 to 4", name,
             shape.size());
    if (tensor.rows() % tensor.fold() != 0)
        fail(ErrorCode::input, "model", "tensor '{}': {} rows of {} are no whole blocks of {}", name,
             tensor.rows(), tensor.row_elements(), refold::name(tensor.type));
    return tensor;
}

void StoredModel::set_tensor(const std::string& name, const std::string& type,
                             const std::vector<int64_t>& shape, std::vector<std::byte> bytes) {
    Tensor tensor = described(name, type, shape);
    if (bytes.size() != tensor.bytes())
        fail(ErrorCode::input, "model", "tensor '{}': got {} bytes, expected {}", name, bytes.size(),
             tensor.bytes());
    auto kept = std::make_shared<const Bytes>(std::move(bytes));
    tensor.mapped = *kept;
    impl_->model.tensors[name] = std::move(tensor);
    impl_->replaced[name] = std::move(kept);
}

void StoredModel::set_values(const std::string& name, const std::string& type,
                             const std::vector<int64_t>& shape, std::span<const float> values) {
    const Tensor tensor = described(name, type, shape);
    if (values.size() != static_cast<size_t>(tensor.elements()))
        fail(ErrorCode::input, "model", "tensor '{}': got {} numbers, expected {}", name, values.size(),
             tensor.elements());
    const int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    set_tensor(name, type, shape, quantize(tensor.type, values, tensor.row_elements(), {}, threads));
}

void StoredModel::set_topology(const std::string& json) {
    impl_->model.topology = topology_from_json(json, {});
}

void StoredModel::check() const {
    validate(impl_->model);
    check_row_parts(impl_->model);
}

void StoredModel::save(const std::string& path, const SaveOptions& options, const Control& control) const {
    const Controlled controlled(control);
    check();
    Model model = impl_->model;
    model.drop_unreferenced();
    const std::string provenance = options.provenance.empty()
                                       ? provenance_of_edits(model, options.recipe, version())
                                       : options.provenance;
    model.metadata.set(kProvenanceKey, GgufValue::string(provenance));
    save_model(model, path, options.overwrite);
}

void StoredModel::save_tokenizer(const std::string& directory) const {
    save_hf_tokenizer(impl_->model, directory);
}

}  // namespace refold
