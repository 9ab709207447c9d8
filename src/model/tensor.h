// Stored tensors: views of mapped files, or computed when read, so that a method can rewrite a 7B model
// without holding it.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "io/dtype.h"
#include "io/gguf.h"

namespace refold {

// Computes the bytes of a tensor. Copies are equal: they give the same bytes.
class Producer {
public:
    Producer() = default;
    template <std::invocable F>
    Producer(F function) : function_(std::make_shared<const Function>(std::move(function))) {}

    explicit operator bool() const { return function_ != nullptr; }
    std::vector<std::byte> operator()() const { return (*function_)(); }
    bool operator==(const Producer&) const = default;

private:
    using Function = std::function<std::vector<std::byte>()>;
    std::shared_ptr<const Function> function_;
};

struct Tensor {
    DType type = DType::F32;
    std::vector<int64_t> shape;         // ggml order: shape[0] contiguous
    std::span<const std::byte> mapped;  // empty when `produce` computes the bytes
    Producer produce;

    int64_t row_elements() const { return shape[0]; }
    int64_t rows() const;
    int64_t elements() const { return row_elements() * rows(); }
    // Rows that lie in whole blocks together: see refold::fold().
    int64_t fold() const { return refold::fold(type, row_elements()); }
    size_t bytes() const { return row_bytes(type, elements()); }
};

// Bytes of a tensor: in place when mapped, else computed once and owned here.
class TensorBytes {
public:
    explicit TensorBytes(const Tensor& tensor);
    std::span<const std::byte> bytes() const { return view_; }

private:
    std::vector<std::byte> owned_;
    std::span<const std::byte> view_;
};

// The mapped files that a model's tensors are views of, in the order of their names.
class SourceFiles {
public:
    explicit SourceFiles(std::vector<std::shared_ptr<const MappedFile>> files) : files_(std::move(files)) {}
    const std::vector<std::shared_ptr<const MappedFile>>& files() const { return files_; }
    // Gives the pages of a view of one of the files back to the page cache; ignores other bytes.
    void release(std::span<const std::byte> view) const;

private:
    std::vector<std::shared_ptr<const MappedFile>> files_;
};

}  // namespace refold
