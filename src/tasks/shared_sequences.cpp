#include "tasks/shared_sequences.h"

#include <algorithm>

namespace refold {
namespace {

// Rooms are multiples of it, so that one that is given back suits the next sequence.
constexpr size_t kRoomUnit = 64;

}  // namespace

size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
    const size_t n = std::min(a.size(), b.size());
    return static_cast<size_t>(
        std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(n), b.begin()).first - a.begin());
}

SharedSequences::~SharedSequences() {
    for (const Sequence& sequence : sequences_) engine_.close(sequence.id);
}

size_t SharedSequences::known_of(const Sequence& sequence, std::span<const int32_t> tokens,
                                 size_t most) const {
    return std::min({common_prefix(sequence.tokens, tokens), sequence.done, most});
}

size_t SharedSequences::known(std::span<const int32_t> tokens, size_t most) const {
    size_t known = 0;
    for (const Sequence& sequence : sequences_) known = std::max(known, known_of(sequence, tokens, most));
    return known;
}

SharedSequences::Sequence* SharedSequences::begin(std::span<const int32_t> tokens, size_t room, size_t most) {
    Sequence* source = nullptr;
    size_t done = 0;
    for (Sequence& sequence : sequences_) {
        const size_t known = known_of(sequence, tokens, most);
        // Rather one that can be taken over.
        if (known > done || (known == done && known > 0 && source->running && !sequence.running)) {
            source = &sequence;
            done = known;
        }
    }
    if (source != nullptr) source->used = ++uses_;
    if (source != nullptr && !source->running && source->room >= room) {
        engine_.truncate(source->id, static_cast<int64_t>(done));
        *source = {source->id, tokens, done, source->room, true, ++uses_};
        return source;
    }
    // An engine of one sequence gives it all it has.
    const auto most_room = static_cast<size_t>(std::min(engine_.context(), engine_.kv_tokens()));
    const size_t wanted = engine_.kv_tokens() < 2 * engine_.context()
                              ? most_room
                              : std::min((room + kRoomUnit - 1) / kRoomUnit * kRoomUnit, most_room);
    std::optional<int32_t> id = engine_.open(static_cast<int64_t>(wanted));
    while (!id && close_one_ended(source)) id = engine_.open(static_cast<int64_t>(wanted));
    if (!id && source != nullptr && !source->running) {
        close_one_ended(nullptr);
        source = nullptr;
        done = 0;
        id = engine_.open(static_cast<int64_t>(wanted));
    }
    if (!id) return nullptr;
    if (done > 0) engine_.copy(source->id, *id, static_cast<int64_t>(done));
    sequences_.push_back({*id, tokens, done, wanted, true, ++uses_});
    return &sequences_.back();
}

// The one that was of use longest ago.
bool SharedSequences::close_one_ended(const Sequence* but) {
    auto oldest = sequences_.end();
    for (auto it = sequences_.begin(); it != sequences_.end(); ++it) {
        if (!it->running && &*it != but && (oldest == sequences_.end() || it->used < oldest->used))
            oldest = it;
    }
    if (oldest == sequences_.end()) return false;
    engine_.close(oldest->id);
    sequences_.erase(oldest);
    return true;
}

}  // namespace refold
