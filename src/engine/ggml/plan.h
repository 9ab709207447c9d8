// How linear maps read resident tensors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/ggml/handles.h"

namespace refold {

// How a storage's bytes lie in memory.
enum class Layout {
    plain,    // rows of blocks, as in GGUF
    q4_0x8,   // ggml's interleaving of eight Q4_0 rows: any multiple of eight rows is contiguous
    q8_0x16,  // panels of sixteen Q8_0 rows for Q8Product (q8_kernels.h): any multiple of sixteen rows is
              // contiguous
    opaque,   // another layout of ggml's extra buffer types: only the whole tensor can be multiplied
};

// One resident tensor: a stored tensor, or several that are always multiplied together (Q, K and V; gate and
// up) laid below each other.
struct Storage {
    ggml_tensor* tensor = nullptr;  // [in, rows]
    Layout layout = Layout::plain;
    std::vector<std::string> parts;  // stored tensors, in order
    bool used_in_parts = false;      // some map reads less than the whole, or reads it by our own kernels
    bool needs_plain = false;        // some map reads columns or single rows

    int64_t in() const { return tensor->ne[0]; }
    int64_t rows() const { return tensor->ne[1]; }
};

// `count` rows (or, in a column plan, columns) of a storage from `first` on.
struct Run {
    Storage* storage = nullptr;
    int64_t first = 0;
    int64_t count = 0;
    bool operator==(const Run&) const = default;
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

}  // namespace refold
