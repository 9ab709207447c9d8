// A model is tensors + a topology. Tensors are views of the mapped source file, or are computed when read, so
// a method can rewrite a 7B model without holding it.
#pragma once

#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "model/config.h"
#include "model/family.h"
#include "model/topology.h"

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
    size_t bytes() const { return row_bytes(type, shape[0]) * static_cast<size_t>(rows()); }
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
    // Gives the pages of `part` back to the page cache, if it is a view of one of the files.
    void release(std::span<const std::byte> part) const;

private:
    std::vector<std::shared_ptr<const MappedFile>> files_;
};

// 1 / L2 norm of each row of a matrix, for ModelConfig::norm_head.
std::vector<float> inverse_row_norms(const Tensor& tensor);

// Cheap to copy: tensor data is shared.
class Model {
public:
    ModelConfig config;
    Topology topology;
    GgufMetadata metadata;
    const Family* family = nullptr;
    std::string label;                          // where it came from, for messages
    std::shared_ptr<const SourceFiles> source;  // keeps the mapped tensors alive
    std::map<std::string, Tensor> tensors;
    // Read from a config.json alone: tensors have shapes and types; reading one throws Error(input).
    bool shapes_only = false;

    // Throws Error(input) naming the tensor when it does not exist.
    const Tensor& tensor(const std::string& name) const;
    // The topology that the family's naming implies for this model's tensors: no sharing.
    Topology implied() const;
    // Forgets tensors that no slot refers to.
    void drop_unreferenced();
    // True when some stored tensor serves more than one position, or a position's weights are made of parts
    // or factors of tensors, or positions differ in size: what without_sharing() undoes; or there are prefix
    // keys and values, attention of other positions or W_c, which it refuses.
    bool has_sharing() const;
};

// Reads a GGUF file (refold's own or any of a supported family) or a Hugging Face directory and validates it.
// Nothing of the weights is read yet. Throws Error(io), Error(input), Error(unsupported) with file and
// tensor, position or key.
Model load_model(const std::string& path);
Model load_gguf_model(const std::string& path);

// Checks that every slot of every position resolves: tensors exist, shapes, ranks and head ranges fit the
// configuration, shared columns are whole quantisation blocks. Throws Error(input) naming position and slot.
void validate(const Model& model);

// config.heads_kv, ffs and n_prefix as JSON, key "refold.sizes"; empty when there is nothing to say. Parsing
// throws Error(input) for what does not fit the configuration.
std::string sizes_to_json(const ModelConfig& config);
void sizes_from_json(const std::string& json, size_t positions, ModelConfig& config);

// Writes one GGUF file: unique tensors once, the topology under "refold.topology" when it is not the implied
// one (a model without sharing is plain GGUF). Streams tensor by tensor; atomic.
void save_model(const Model& model, const std::string& path, bool overwrite);

// The weight of a slot as dense floats, row major [out][in]; `position` tells the size where positions
// differ.
std::vector<float> materialise(const Model& model, const Expression& expression, Slot slot,
                               size_t position = kModelPosition);
// A stored tensor as floats.
std::vector<float> floats_of(const Model& model, const std::string& tensor);
// [rows][columns] as [columns][rows].
std::vector<float> transposed(std::span<const float> matrix, int64_t rows, int64_t columns);

// The same function without any sharing: every position has its own dense tensors under the family's names,
// of the same size: what was pruned comes back as zeros. Quantised bytes are copied as they are where all
// parts of a weight have one type; products of factors take the widest type of their parts. Tensors are
// produced on reading, positions that repeat others are written out.
// Throws Error(unsupported) for prefix keys and values.
Model without_sharing(const Model& model);

// The same function of tokens that run all loops.
Model without_exit_maps(Model model);

// The model as stock llama.cpp loads it, with the same logits.
struct StockModel {
    Model model;
    std::string note;  // what the user should know about the difference; mostly empty
};
// Throws Error(unsupported) naming the part that llama.cpp cannot express.
StockModel for_stock(const Model& model);

}  // namespace refold
