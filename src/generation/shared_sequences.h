// Sequences of an engine that begin with what other sequences have computed already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace refold {

// How many tokens both begin with.
size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b);

class SharedSequences {
public:
    struct Sequence {
        int32_t id = 0;
        std::vector<int32_t> tokens = {};  // that it begins with
        size_t done = 0;                   // of them, those that the engine has and others may begin with
        size_t room = 0;                   // tokens
        bool running = true;
        int64_t used = 0;      // higher is later
        int32_t adapter = -1;  // as Engine::use_adapter()
    };

    // How much room sequences get: what they need, in units that suit the next one as well, and all of it in
    // an engine for one sequence; or exactly what they need.
    enum class Rooms { rounded, exact };

    // `engine` has no sequences yet and outlives this. In an engine that evicts, a sequence can only be
    // continued from its end or from nothing.
    explicit SharedSequences(Engine& engine, Rooms rooms = Rooms::rounded) : engine_(engine), rooms_(rooms) {}
    ~SharedSequences();
    SharedSequences(const SharedSequences&) = delete;
    SharedSequences& operator=(const SharedSequences&) = delete;

    // How many tokens begin() would find in the engine, at most `most`, for a sequence without an adapter.
    size_t known(std::span<const int32_t> tokens, size_t most) const;
    // A sequence with room for `room` tokens that begins with `tokens`. Of these, at most `most` are in the
    // engine already: Sequence::done; what other sequences with the same adapter have computed. Null while
    // there is no room.
    Sequence* begin(std::span<const int32_t> tokens, size_t room, size_t most, int32_t adapter = -1);
    // Gives a sequence that has run nothing yet what others have computed of its tokens meanwhile, at most
    // `most`. Returns how many it has now.
    size_t catch_up(Sequence& sequence, size_t most);
    // Others may begin with its tokens until its room is needed.
    void end(Sequence& sequence) { sequence.running = false; }
    // The ended ones without an adapter that others may begin with, those used longest ago first.
    std::vector<const Sequence*> kept() const;
    // Takes an ended sequence of these tokens, used longer ago than all others, whose keys and values
    // Engine::save_tokens() gave. Returns false where there is no room. Throws as Engine::load_tokens().
    bool restore(std::vector<int32_t> tokens, std::span<const std::byte> saved);
    const Engine& engine() const { return engine_; }
    // Closes it at once. What the engine throws is lost.
    void forget(const Sequence& sequence);
    // Closes all sequences.
    void clear();

private:
    // What has most of the tokens, and how many; null: nothing has any.
    struct Match {
        Sequence* source = nullptr;
        size_t tokens = 0;
    };
    Match longest(std::span<const int32_t> tokens, size_t most, int32_t adapter, const Sequence* except);
    size_t known_of(const Sequence& sequence, std::span<const int32_t> tokens, size_t most) const;
    bool has_room(Sequence& sequence, size_t tokens);
    bool shrink_ended();
    bool close_one_ended(const Sequence* except);

    size_t room_for(size_t tokens) const;

    Engine& engine_;
    const Rooms rooms_;
    std::list<Sequence> sequences_;
    int64_t uses_ = 0, earlier_uses_ = 0;  // of restored ones: below 0
};

}  // namespace refold
