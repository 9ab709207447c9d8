#include <memory>
#include <span>
#include <string>
#include <utility>

#include "native/bindings.h"
#include "native/progress.h"
#include "native/task.h"

namespace refold::python {
namespace {

std::vector<std::byte> bytes_of(const nb::bytes& bytes) {
    const auto* data = static_cast<const std::byte*>(bytes.data());
    return {data, data + bytes.size()};
}

using Numbers = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A view that keeps what it views alive.
nb::ndarray<nb::numpy, const uint8_t> array_of(const TensorView& view) {
    auto* owner = new std::shared_ptr<const void>(view.owner);
    const nb::capsule kept(owner,
                           [](void* p) noexcept { delete static_cast<std::shared_ptr<const void>*>(p); });
    return nb::ndarray<nb::numpy, const uint8_t>(reinterpret_cast<const uint8_t*>(view.bytes.data()),
                                                 {view.bytes.size()}, kept);
}

}  // namespace

void bind_stored_model(nb::module_& module) {
    module.def(
        "special_tokens",
        [](const std::string& path) {
            const Tokenizer tokenizer(path);
            return std::pair(tokenizer.bos(), tokenizer.eos());
        },
        nb::arg("path"), "BOS and EOS of a file or directory.");
    nb::class_<StoredModel>(module, "StoredModel")
        .def(
            "__init__",
            [](StoredModel* self, const std::string& name) {
                new (self) StoredModel(run([&](const std::stop_token&) { return StoredModel(name); }));
            },
            nb::arg("name"))
        .def("copy", &StoredModel::copy)
        .def_prop_ro("path", &StoredModel::path)
        .def("info", [](const StoredModel& m) { return to_dict(m.info()); })
        .def("config", &StoredModel::config)
        .def("topology", &StoredModel::topology)
        .def("provenance", &StoredModel::provenance)
        .def("tensor_names", &StoredModel::tensor_names)
        .def(
            "tensor",
            [](const StoredModel& m, const std::string& name) {
                const StoredTensor tensor = m.tensor(name);
                return std::tuple(tensor.type, tensor.shape, tensor.bytes);
            },
            nb::arg("name"))
        .def(
            "view",
            [](const StoredModel& m, const std::string& name) {
                return array_of(run([&](const std::stop_token&) { return m.view(name); }));
            },
            nb::arg("name"))
        .def(
            "values",
            [](const StoredModel& m, const std::string& name) {
                auto values = run([&](const std::stop_token&) { return m.values(name); });
                const size_t size = values.size();
                return to_array(std::move(values), {size});
            },
            nb::arg("name"))
        .def(
            "matrix",
            [](const StoredModel& m, std::optional<size_t> layer, const std::string& slot) {
                StoredMatrix matrix = run([&](const std::stop_token&) { return m.matrix(layer, slot); });
                return to_array(std::move(matrix.values),
                                {static_cast<size_t>(matrix.out), static_cast<size_t>(matrix.in)});
            },
            nb::arg("layer").none(), nb::arg("slot"))
        .def(
            "set_tensor",
            [](StoredModel& m, const std::string& name, const std::string& type,
               const std::vector<int64_t>& shape,
               const nb::bytes& bytes) { m.set_tensor(name, type, shape, bytes_of(bytes)); },
            nb::arg("name"), nb::arg("type"), nb::arg("shape"), nb::arg("bytes"))
        .def(
            "set_values",
            [](StoredModel& m, const std::string& name, const std::string& type,
               const std::vector<int64_t>& shape, const Numbers& values) {
                const std::span<const float> numbers(values.data(), values.size());
                run([&](const std::stop_token&) {
                    m.set_values(name, type, shape, numbers);
                    return true;
                });
            },
            nb::arg("name"), nb::arg("type"), nb::arg("shape"), nb::arg("values"))
        .def("set_topology", &StoredModel::set_topology, nb::arg("json"))
        .def("check", &StoredModel::check)
        .def(
            "save",
            [](const StoredModel& m, const std::string& output, const std::string& recipe,
               const std::string& provenance, bool overwrite, const nb::object& progress) {
                return run_with_progress(progress, [&](const Control& control) {
                    m.save(output, {.overwrite = overwrite, .recipe = recipe, .provenance = provenance},
                           control);
                    return output;
                });
            },
            nb::arg("output"), nb::kw_only(), nb::arg("recipe"), nb::arg("provenance"), nb::arg("overwrite"),
            nb::arg("progress").none())
        .def("save_tokenizer", &StoredModel::save_tokenizer, nb::arg("directory"));
}

}  // namespace refold::python
