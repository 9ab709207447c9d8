// How linear maps read resident weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/ggml/handles.h"
#include "engine/ggml/panel_product.h"

namespace refold {

// Memory layout of a storage.
enum class Layout {
    plain,   // rows of blocks, as in GGUF
    q4_0x8,  // groups of eight interleaved Q4_0 rows (ggml's repacked layout), each contiguous
    panels,  // panels of sixteen rows for PanelProduct (row_panels.h), each contiguous
    folded,  // plain, with several rows of W in a row of the tensor: for FoldedProduct
    opaque,  // another layout of ggml's extra buffer types: only ggml can multiply it, and only as a whole
};

// One resident matrix: a stored tensor, or the rows of several that are always multiplied together (Q, K and
// V; gate and up).
struct Storage {
    ggml_tensor* tensor = nullptr;  // [in * fold, rows / fold]
    int64_t fold = 1;               // more than one only in Layout::folded and Layout::panels
    Layout layout = Layout::plain;
    std::vector<std::string> tensors;  // names of the stored tensors, in order of rows
    // Some map reads it in runs: its layout must be plain, q4_0x8, or panels where all its runs are whole
    // panels.
    bool used_in_runs = false;
    // Experts read it: its layout must be plain, or panels where those of every expert are whole.
    bool used_by_experts = false;
    // Some map reads column ranges or single rows: its layout must be plain.
    bool needs_plain = false;
    // The rows of a table as stored, where the tensor is in the memory of another device.
    std::vector<std::byte> host_rows;

    int64_t in() const { return tensor->ne[0] / fold; }
    int64_t rows() const { return tensor->ne[1] * fold; }
};

// Rows [first, first + count) of a storage; in plans with `columns` these are columns.
struct Run {
    Storage* storage = nullptr;
    int64_t first = 0;
    int64_t count = 0;
    bool operator==(const Run&) const = default;
};

// On a device: storages that lie behind each other, in blocks of rows that plans pick theirs from. All of a
// plan's rows then are one product, as if they were experts, or are gathered before one product.
struct HeadBank {
    // Up to so many tokens the blocks are experts.
    static constexpr int64_t kFewTokens = 8;

    ggml_tensor* blocks = nullptr;   // [in, rows of a block, blocks of the bank]
    ggml_tensor* numbers = nullptr;  // I32 [blocks of W, kFewTokens]: which they are, for every token
    // The same bytes as I32, each block in several pieces, and the pieces of W.
    ggml_tensor* words = nullptr;   // [words of a piece, pieces of the bank]
    ggml_tensor* pieces = nullptr;  // I32 [pieces of W]
};

// y = W x for one slot, or for several slots with the same input, whose rows follow each other in W.
struct LinearPlan {
    enum class Kind {
        whole,     // one storage, one product
        runs,      // other runs in rows: multiplied in place
        panels,    // runs of whole panels of any types: PanelRun
        composed,  // runs of folded rows, and with SharedExecution::composed: ggml products of views,
                   // concatenated (rows) or added (columns)
        parts,     // whole storages, multiplied one by one; row_ids says which rows of W theirs are
    };
    Kind kind = Kind::whole;
    bool columns = false;  // runs are column blocks of W (attn.o), else row blocks
    int64_t in = 0, out = 0;
    std::vector<Run> runs;
    std::vector<PanelRun> panel_runs;  // of `panels`
    std::vector<int64_t> slot_rows;    // rows of each slot in W
    std::vector<int32_t> row_ids;      // of `parts`: ids_in_order() in model/row_parts.h
    ggml_tensor* bias = nullptr;       // [out]
    HeadBank bank;                     // of `runs` on a device that has the operations

    ggml_type type() const { return runs.front().storage->tensor->type; }
    Layout layout() const { return runs.front().storage->layout; }
};

}  // namespace refold
