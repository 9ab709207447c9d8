// The parts of the extension module refold._native, one function per file, and what they share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "refold/refold.h"

namespace refold::python {

namespace nb = nanobind;

void bind_errors();
void bind_generation(nb::module_& module);
void bind_model(nb::module_& module);
void bind_encoder(nb::module_& module);
void bind_compression(nb::module_& module);
void bind_stored_model(nb::module_& module);

// {"parameters": ..., ...}, the fields of the structures by their names.
using Facts = nb::typed<nb::dict, nb::str, nb::any>;
Facts to_dict(const ModelCost& cost);
Facts to_dict(const ModelInfo& info);

// The options by their names in refold/generation.h, those of SamplingOptions among them; the others keep
// their defaults. Throws nb::type_error for unknown names and values of wrong types.
GenerationOptions generation_options(const Facts& options);

// An array that owns `values`, which are not copied.
template <typename T>
nb::ndarray<nb::numpy, T> to_array(std::vector<T> values, std::initializer_list<size_t> shape) {
    auto* owned = new std::vector<T>(std::move(values));
    const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::ndarray<nb::numpy, T>(owned->data(), shape, owner);
}

}  // namespace refold::python
