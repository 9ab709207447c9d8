// A stored model as data: its configuration, its topology, its tensors, and edits of them.
//
//     refold::StoredModel model("small.gguf");
//     std::vector<float> weights = model.values("blk.0.ffn_down.weight");
//     ...
//     model.set_tensor("blk.0.ffn_down.weight", "F32", shape, std::as_bytes(std::span(weights)));
//     model.save("edited.gguf", {.recipe = "weights edited by hand"});
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "refold/control.h"
#include "refold/model.h"

namespace refold {

struct StoredTensor {
    std::string type;            // "F32", "BF16", "Q4_K", ...
    std::vector<int64_t> shape;  // rows first: {out, in} of a matrix; the last dimension is contiguous
    uint64_t bytes = 0;
};

struct StoredMatrix {
    int64_t out = 0, in = 0;
    std::vector<float> values;  // [out][in]
};

// Bytes that stay valid as long as `owner` lives.
struct TensorView {
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> owner;
};

struct SaveOptions {
    bool overwrite = false;
    // What was done, for the file's provenance: YAML as a recipe, or a sentence.
    std::string recipe = "edited";
    // The whole provenance instead, JSON as in docs/format.md. Empty: made of `recipe` and of the file that
    // was opened.
    std::string provenance = {};
};

// Tensors are mapped: opening and looking at a model is quick, and what is not replaced is never copied. One
// thread at a time may edit it; several may read it.
class StoredModel {
public:
    // Throws as ModelFile does.
    explicit StoredModel(const std::string& model);
    ~StoredModel();
    StoredModel(StoredModel&&) noexcept;
    StoredModel& operator=(StoredModel&&) noexcept;

    // The same with all edits so far, for further ones. Tensors are shared.
    StoredModel copy() const;

    // The file or directory that was opened.
    const std::string& path() const;
    ModelInfo info() const;
    // The fields of ModelConfig (src/model/config.h) under their names, as a JSON object.
    std::string config() const;
    // JSON as in docs/format.md, with nothing implied by names: every slot that is not empty is mentioned,
    // but for layers that are "like" an earlier one.
    std::string topology() const;
    // refold.provenance: JSON, or empty.
    std::string provenance() const;

    std::vector<std::string> tensor_names() const;
    // These throw Error(input) for a name that does not exist.
    StoredTensor tensor(const std::string& name) const;
    // Bytes in the tensor's own type. Not copied, but for tensors of a directory whose layout differs there.
    TensorView view(const std::string& name) const;
    // Numbers, row by row.
    std::vector<float> values(const std::string& name) const;
    // The weight of a slot ("attn.q") in full, whatever its expression; of the whole model ("output") without
    // a layer. Throws Error(input) where there is no such slot, or its expression does not fit the tensors.
    StoredMatrix matrix(std::optional<size_t> layer, const std::string& slot) const;

    // Adds or replaces a tensor: `bytes` in `type`. Throws Error(usage) for an unknown type, Error(input)
    // when shape and bytes do not fit.
    void set_tensor(const std::string& name, const std::string& type, const std::vector<int64_t>& shape,
                    std::vector<std::byte> bytes);
    // The same for numbers, row by row, which are rounded to `type`.
    void set_values(const std::string& name, const std::string& type, const std::vector<int64_t>& shape,
                    std::span<const float> values);
    // JSON as topology() gives it: a slot that is not mentioned is empty. Throws Error(input) for what cannot
    // be read; whether it fits the tensors is for check(), so that both can change one after the other.
    void set_topology(const std::string& json);
    // Throws Error(input) naming layer and slot where topology, tensors and configuration do not fit.
    void check() const;

    // refold's GGUF, of the tensors that slots use. Atomic. Throws as check() and ModelFile::save().
    void save(const std::string& path, const SaveOptions& options = {}, const Control& control = {}) const;
    // The tokenizer's files as Hugging Face's libraries read them, into an existing directory.
    void save_tokenizer(const std::string& directory) const;

private:
    StoredModel();

    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace refold
