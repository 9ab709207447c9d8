// llama.cpp's importance matrices: for every matrix, how large each of its inputs is. Quantization rounds the
// columns of large inputs with less error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"

namespace refold {

struct ImportanceMatrix {
    struct Entry {
        // By column: the mean of the input's square over `count` tokens. Of a tensor with several matrices
        // (experts), one matrix after the other.
        std::vector<float> mean_squares;
        int64_t count = 0;
    };
    std::map<std::string, Entry> tensors;  // by the stored tensor's name
    std::vector<std::string> datasets;     // names of the texts
    int64_t chunks = 0;                    // sequences
    int64_t chunk_size = 0;                // tokens of a sequence; 0: unknown
};

// Reads both forms of llama.cpp's tool imatrix: GGUF (sums NAME.in_sum2 and NAME.counts) and the older binary
// form, whose counts are of calls and which does not know chunk_size. As in llama.cpp, matrices that saw no
// tokens have means of 1. Throws Error(io); Error(input) naming the entry for files that are no importance
// matrices, sizes larger than the file, and numbers that are negative or not finite.
ImportanceMatrix load_importance_matrix(const std::string& path);
// The same for bytes in memory; `label` is for messages.
ImportanceMatrix parse_importance_matrix(std::span<const std::byte> bytes, const std::string& label);

// Writes the GGUF form, complete or not at all. Throws Error(usage) when the file exists and `overwrite` is
// false.
void save_importance_matrix(const ImportanceMatrix& matrix, const std::string& path, bool overwrite);

// Throws Error(input) when an entry has another width than the model's tensor, or when no entry belongs to a
// tensor of the model.
void check_importance_matrix(const ImportanceMatrix& matrix, const Model& model);

}  // namespace refold
