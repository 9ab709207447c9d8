// A device that is none: libtorch's spare one ("privateuseone"), whose tensors lie in this machine's memory
// and whose operations the CPU computes. As on a GPU, an operation with tensors of both devices is an error
// (but for numbers of the CPU), and what reads its memory directly crashes. To be included once in a program.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <vector>

namespace refold::fake_device {

inline constexpr const char* kName = "privateuseone:0";
inline const at::Device kDevice(at::kPrivateUse1, 0);
// Tensors made on each of several such devices.
inline std::atomic<int64_t> made[4];

// Addresses of its tensors are no addresses of the machine.
constexpr uintptr_t kHidden = uintptr_t{1} << 60;
inline void* hidden(void* memory) {
    return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(memory) ^ kHidden);
}

// What its tensors take, now and at most so far.
inline size_t g_bytes = 0, g_most_bytes = 0;

struct Block {
    size_t bytes;
    void* memory;
};
inline void release(void* context) {
    auto* const block = static_cast<Block*>(context);
    g_bytes -= block->bytes;
    std::free(block->memory);
    delete block;
}

inline at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                                c10::optional<at::ScalarType> type, c10::optional<at::Layout>,
                                c10::optional<at::Device> device, c10::optional<bool>) {
    const at::Device on = device && device->has_index() ? *device : kDevice;
    ++made[on.index()];
    const auto meta = c10::scalarTypeToTypeMeta(type.value_or(at::kFloat));
    int64_t last = 0;
    for (size_t i = 0; i < sizes.size(); ++i)
        last = sizes[i] == 0 || last < 0 ? -1 : last + (sizes[i] - 1) * strides[i];
    const size_t bytes = static_cast<size_t>(last + 1) * meta.itemsize();
    auto* const block = new Block{bytes, std::malloc(bytes + 1)};
    g_bytes += bytes;
    g_most_bytes = std::max(g_most_bytes, g_bytes);
    c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                         c10::DataPtr(hidden(block->memory), block, &release, on), nullptr, false);
    at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), meta);
    out.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    return out;
}

inline at::Tensor empty(at::IntArrayRef sizes, c10::optional<at::ScalarType> type,
                        c10::optional<at::Layout> layout, c10::optional<at::Device> device,
                        c10::optional<bool> pinned, c10::optional<at::MemoryFormat>) {
    std::vector<int64_t> strides(sizes.size());
    int64_t stride = 1;
    for (size_t i = sizes.size(); i-- > 0; stride *= std::max<int64_t>(sizes[i], 1)) strides[i] = stride;
    return empty_strided(sizes, strides, type, layout, device, pinned);
}

inline bool is_here(const at::Tensor& x) { return x.defined() && x.device().type() == at::kPrivateUse1; }

// The same memory as a tensor of the CPU. An empty one is new, so that results can be written to it.
inline at::Tensor on_host(const at::Tensor& x, const std::string& operation) {
    if (!x.defined() || (!is_here(x) && x.dim() == 0)) return x;
    TORCH_CHECK(is_here(x), operation, ": a tensor is on ", x.device());
    if (x.numel() == 0) return at::empty(x.sizes(), x.scalar_type());
    auto* bytes = static_cast<char*>(hidden(x.storage().data_ptr().get()));
    return at::from_blob(bytes + static_cast<size_t>(x.storage_offset()) * x.itemsize(), x.sizes(),
                         x.strides(), at::TensorOptions(x.scalar_type()));
}

inline at::Tensor on_device(const at::Tensor& x, at::Device device) {
    if (!x.defined()) return x;
    const at::Tensor out = empty_strided(x.sizes(), x.strides(), x.scalar_type(), {}, device, {});
    if (x.numel() > 0) on_host(out, "").copy_(x);
    return out;
}

// Of an empty tensor that an operation has made larger.
inline void grow(const at::Tensor& original, const at::Tensor& result) {
    if (original.numel() > 0 || result.numel() == 0) return;
    const at::Tensor copy = on_device(result, original.device());
    original.unsafeGetTensorImpl()->set_storage_keep_dtype(copy.storage());
    original.unsafeGetTensorImpl()->set_sizes_and_strides(copy.sizes(), copy.strides());
}

// For decompositions that write to several tensors which the caller gives: the operation that returns new
// ones.
inline void results_into(const std::vector<at::Tensor>& written, const std::string& name,
                         torch::jit::Stack* stack) {
    stack->resize(stack->size() - written.size());
    c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "").callBoxed(stack);
    for (size_t i = 0; i < written.size(); ++i) {
        c10::IValue& value = (*stack)[stack->size() - written.size() + i];
        grow(written[i], value.toTensor());
        if (written[i].numel() > 0) on_host(written[i], name).copy_(value.toTensor());
        value = written[i];
    }
}

inline void on_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
    const auto& schema = operation.schema();
    const std::string name = schema.name() + "." + schema.overload_name();
    const size_t first = stack->size() - schema.arguments().size();
    std::vector<at::Tensor> written;
    at::Device device = kDevice;  // of the arguments
    const auto see = [&](const at::Tensor& x) {
        if (is_here(x)) device = x.device();
    };
    for (size_t i = first; i < stack->size(); ++i) {
        c10::IValue& value = (*stack)[i];
        const auto* alias = schema.arguments()[i - first].alias_info();
        if (value.isTensor()) {
            see(value.toTensor());
            if (alias != nullptr && alias->isWrite()) written.push_back(value.toTensor());
            value = on_host(value.toTensor(), name);
        } else if (value.isTensorList()) {
            c10::List<at::Tensor> list;
            for (const at::Tensor& x : value.toTensorVector()) {
                see(x);
                list.push_back(on_host(x, name));
            }
            value = list;
        } else if (value.isOptionalTensorList()) {
            c10::List<c10::optional<at::Tensor>> list;
            for (const c10::optional<at::Tensor>& x : value.toOptionalTensorVector())
                list.push_back(x ? c10::make_optional(on_host(*x, name)) : c10::nullopt);
            value = list;
        } else if (value.isDevice()) {
            if (value.toDevice().has_index()) device = value.toDevice();
            value = at::Device(at::kCPU);
        }
    }
    if (written.size() > 1 && name.find("linalg_") != std::string::npos)
        return results_into(written, schema.name(), stack);
    // libtorch 1.13 frees the stack's references to tensors that it writes to before it reads these.
    const std::vector<c10::IValue> held(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
    operation.callBoxed(stack);
    const size_t result = stack->size() - schema.returns().size();
    for (size_t i = result, w = 0; i < stack->size(); ++i) {
        c10::IValue& value = (*stack)[i];
        if (!value.isTensor()) {
            TORCH_CHECK(!value.isTensorList(), name, ": results in a list");
            continue;
        }
        const auto* alias = schema.returns()[i - result].alias_info();
        TORCH_CHECK(alias == nullptr || alias->isWrite(), name, ": is a view");
        if (alias != nullptr) {
            grow(written.at(w), value.toTensor());
            value = written.at(w++);
        } else {
            value = on_device(value.toTensor(), device);
        }
    }
}

inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
    const auto host = [](const at::Tensor& x) {
        if (!is_here(x)) return x;
        const at::Tensor out = on_host(x, "copy");
        return x.is_conj() ? out.conj() : out;
    };
    if (to.numel() > 0) host(to).copy_(host(from));
    return to;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
    library.impl("empty.memory_format", &empty);
    library.impl("empty_strided", &empty_strided);
    library.impl("_copy_from", &copy_from);
    library.impl("as_strided", &at::native::as_strided_tensorimpl);
    library.impl("view", &at::native::view);
    library.impl("_reshape_alias", &at::native::_reshape_alias);
    library.impl("view_as_real", &at::native::view_as_real);
    library.impl("view_as_complex", &at::native::view_as_complex);
}

// Else copies of what is conjugated by a mark would be asked for without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
    library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, c10::impl::NoOpDeviceGuardImpl<at::kPrivateUse1>);

}  // namespace refold::fake_device
