// A model's weights in memory, once each, and the plan by which every linear map reads them.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/ggml/handles.h"
#include "model/forward.h"

namespace refold {

// How a storage's bytes lie in memory.
enum class Layout {
    plain,   // rows of blocks, as in GGUF
    q4_0x8,  // ggml's interleaving of eight Q4_0 rows: any multiple of eight rows is contiguous
    opaque,  // another layout of ggml's extra buffer types: only the whole tensor can be multiplied
};

// One resident tensor: a stored tensor, or several that are always multiplied together (Q, K and V; gate and
// up) laid below each other.
struct Storage {
    ggml_tensor* tensor = nullptr;  // [in, rows]
    Layout layout = Layout::plain;
    std::vector<std::string> parts;  // stored tensors, in order
    bool used_in_parts = false;      // some map reads less than the whole
    bool needs_plain = false;        // some map reads columns through ggml's own views

    int64_t in() const { return tensor->ne[0]; }
    int64_t rows() const { return tensor->ne[1]; }
};

// `count` rows (or, in a column plan, columns) of a storage from `first` on.
struct Run {
    Storage* storage;
    int64_t first;
    int64_t count;
};

// y = W x for one slot, or for several slots of one input below each other.
struct LinearPlan {
    enum class Kind {
        whole,     // one storage as it is: ggml's product
        parts,     // several runs of one type: own product in place for few tokens, gathered for many
        composed,  // ggml products of views, concatenated (rows) or added (columns)
    };
    Kind kind = Kind::whole;
    bool columns = false;  // runs are column blocks of W (attn.o), otherwise row blocks
    int64_t in = 0, out = 0;
    std::vector<Run> runs;
    std::vector<int64_t> slot_rows;  // rows of each slot
    ggml_tensor* scratch = nullptr;  // [in, out] in the runs' layout, shared by all plans of that shape
    ggml_tensor* bias = nullptr;     // [out]

    ggml_type type() const { return runs.front().storage->tensor->type; }
    Layout layout() const { return runs.front().storage->layout; }
};

class Weights {
public:
    Weights(const Model& model, bool f32, SharedExecution shared, int threads);

    // Plans for consecutive groups of `slots`, e.g. one for {q, k, v}, or three when their types differ.
    const std::vector<LinearPlan>& linear(size_t position, std::span<const Slot> slots) const;
    bool has(size_t position, Slot slot) const;
    // Norm weights, their biases and other vectors [n]; null when the topology has none.
    ggml_tensor* vector(size_t position, Slot slot) const;
    // 1 / L2 norm of each row of the output (ModelConfig::norm_head); else null.
    ggml_tensor* inverse_output_norms() const { return inverse_output_norms_; }
    // A row of token_embd, position_embd or token_types as floats.
    void table_row(Slot table, int32_t row, std::span<float> out) const;

    // Bytes of all resident weights; scratch is not part of it.
    uint64_t bytes() const { return bytes_; }
    uint64_t scratch_bytes() const { return scratch_bytes_; }

private:
    struct TensorRun;
    struct Placement {
        Storage* storage;
        int64_t row;  // first row of the tensor in the storage
    };
    std::vector<TensorRun> runs_of(const Expression& expression, Slot slot) const;
    void place_tensors(const std::vector<std::vector<TensorRun>>& slots, bool fuse);
    void plan_group(size_t position, std::span<const Slot> slots);
    LinearPlan make_plan(std::span<const Slot> slots, std::span<const std::vector<TensorRun>> runs) const;
    void mark_partial_use();
    // Tensors that share a buffer.
    using Buffers = std::map<ggml_backend_buffer_type_t, std::vector<ggml_tensor*>>;
    void choose_layouts(Buffers& buffers);
    void plan_scratch(Buffers& buffers);
    void allocate(const Buffers& buffers);
    void load(int threads);
    void load_storage(Storage& storage, bool f32);
    void plan_position(size_t position, const Slots& slots);
    ggml_tensor* add_vector(std::vector<float> data, const std::string& name);
    ggml_tensor* concatenated_bias(size_t position, std::span<const Slot> slots);

    const Model* model_;  // only while constructing
    bool f32_;
    SharedExecution shared_;
    ggml_context_ptr context_;
    std::vector<ggml_backend_buffer_ptr> buffers_;
    std::vector<std::unique_ptr<Storage>> storages_;
    std::map<std::string, Placement> placed_;
    std::map<std::pair<size_t, Slot>, std::vector<LinearPlan>> plans_;  // by position and first slot
    std::map<std::string, ggml_tensor*> vectors_;
    std::map<std::pair<size_t, Slot>, ggml_tensor*> slot_vectors_;
    std::map<Slot, const Storage*> tables_;
    std::set<std::pair<size_t, Slot>> slots_;
    std::vector<std::pair<ggml_tensor*, std::vector<float>>> vector_data_;
    ggml_tensor* inverse_output_norms_ = nullptr;
    uint64_t bytes_ = 0, scratch_bytes_ = 0;
};

}  // namespace refold
