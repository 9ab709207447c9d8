// Sequences of a batch engine that begin with what others have computed already.
#pragma once

#include <cstdint>
#include <list>
#include <span>

#include "engine/batch.h"

namespace refold {

// Tokens that both begin with.
size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b);

class SharedSequences {
public:
    struct Sequence {
        int32_t id = 0;
        std::span<const int32_t> tokens;  // that it begins with
        size_t done = 0;                  // tokens that the engine has, whoever computed them
        size_t room = 0;
        bool running = true;
        uint64_t used = 0;  // the higher, the later
    };

    // `engine` has no sequences yet, and outlives this.
    explicit SharedSequences(BatchEngine& engine) : engine_(engine) {}
    ~SharedSequences();
    SharedSequences(const SharedSequences&) = delete;
    SharedSequences& operator=(const SharedSequences&) = delete;

    // Of what begin() would find there already.
    size_t known(std::span<const int32_t> tokens, size_t most) const;
    // A sequence for `tokens` (which outlive it) and more behind them, `room` in all; of its beginning at
    // most `most` tokens are there already. Null while there is no room.
    Sequence* begin(std::span<const int32_t> tokens, size_t room, size_t most);
    // Others may still begin with its tokens, until its room is needed.
    void end(Sequence& sequence) { sequence.running = false; }

private:
    size_t known_of(const Sequence& sequence, std::span<const int32_t> tokens, size_t most) const;
    bool close_one_ended(const Sequence* but);

    BatchEngine& engine_;
    std::list<Sequence> sequences_;
    uint64_t uses_ = 0;
};

}  // namespace refold
