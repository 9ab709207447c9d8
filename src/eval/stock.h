// Stock llama.cpp (libllama, same build of ggml) on a GGUF file: the reference for speed and logits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace refold {

struct StockOptions {
    int threads = 0;             // 0: all cores
    int64_t context = 4096;      // of one sequence
    int64_t sequences = 1;       // each with a KV cache of its own (n_seq_max)
    int64_t chunk = 512;         // n_batch and n_ubatch
    std::string device = "cpu";  // as EngineOptions::device; cpu-plain is the CPU, too
    int64_t gpu_layers = -1;     // as EngineOptions::gpu_layers
    WorkerAccess workers = {};   // as EngineOptions::workers
    KvType kv = KvType::f16;     // q8_0 and q4_0 need its flash attention
    // true: libllama chooses (its default). Its flash attention rounds K and V to float16, whatever the type
    // of the KV cache. false, with kv f32: attention in float32.
    bool flash_attention = true;
};

// A token of one of several sequences.
struct StockRow {
    int32_t sequence, position, token;
};

class StockLlama {
public:
    // Throws Error(unsupported) with libllama's reason when it cannot load the file.
    StockLlama(const std::string& gguf_path, const StockOptions& options);
    ~StockLlama();
    StockLlama(const StockLlama&) = delete;
    StockLlama& operator=(const StockLlama&) = delete;

    // Appends tokens; logits [n_vocab] after the last one, valid until the next call. Throws Error(input)
    // when they do not fit or are not in the vocabulary.
    std::span<const float> evaluate(std::span<const int32_t> tokens);
    // Appends tokens; logits [tokens, n_vocab] of all of them.
    std::vector<float> evaluate_all(std::span<const int32_t> tokens);
    // Runs the next tokens of any sequences in one step of at most StockOptions::chunk rows; logits [rows,
    // n_vocab] of all rows, valid until the next call.
    std::span<const float> step(std::span<const StockRow> rows);
    // Forgets the sequence's tokens from `length` on.
    void truncate(int32_t sequence, int32_t length);
    void clear();
    int64_t n_vocab() const;
    // Puts its worker threads to sleep, and wakes them.
    void pause();
    void resume();

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace refold
