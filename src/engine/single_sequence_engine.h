// Common to engines with room for one sequence.
#pragma once

#include <vector>

#include "engine/engine.h"
#include "engine/forward_input.h"

namespace refold {

// Keeps track of the sequence and checks its steps; derived classes compute them.
class SingleSequenceEngine : public Engine {
public:
    std::optional<int32_t> open(int64_t tokens) final;
    void close(int32_t sequence) final;
    void truncate(int32_t sequence, int64_t length) final;
    void copy(int32_t from, int32_t to, int64_t tokens) final;
    void share(int32_t sequence, int64_t position, int32_t loop) final;
    int64_t kv_tokens_used() const final { return open_ ? capabilities().context : 0; }

protected:
    SingleSequenceEngine(const ModelConfig& config, const Capabilities& capabilities)
        : Engine(capabilities), config_(config) {}

    // Checks a step of at least one row, as Engine::step() describes. The result is valid until the next
    // call.
    ForwardInput begin(const StepInput& input);
    // Rows of the step that asked for logits, ascending.
    std::span<const int32_t> asking() const { return asking_; }
    // The tokens of the step belong to the sequence now.
    void commit(const ForwardInput& input);

private:
    void check_open(int32_t sequence) const;
    void check_row(const Row& row, int64_t position, bool has_token) const;
    void check_encoder_input(const StepInput& input) const;

    const ModelConfig config_;
    bool open_ = false;
    int64_t length_ = 0;
    std::vector<int32_t> tokens_, positions_, asking_;  // of the step
};

}  // namespace refold
