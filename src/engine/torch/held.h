// Values other than tensors that an autograd function saves for its backward pass.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <utility>

namespace refold {

template <class T>
struct Held : torch::CustomClassHolder {
    explicit Held(T kept) : value(std::move(kept)) {}
    T value;
};

template <class T>
c10::IValue hold(T value) {
    return c10::IValue::make_capsule(c10::make_intrusive<Held<T>>(std::move(value)));
}

// The value in a capsule of hold(); valid as long as the capsule.
template <class T>
const T& held(const c10::IValue& value) {
    return static_cast<const Held<T>&>(*value.toCapsule()).value;
}

}  // namespace refold
