#include "generation/shared_sequences.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "generation/sequence.h"

namespace refold {
namespace {

// Rooms are multiples of it, so that a room that is given back suits the next sequence.
constexpr size_t kRoomUnit = 64;

}  // namespace

size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
    const size_t n = std::min(a.size(), b.size());
    return static_cast<size_t>(
        std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(n), b.begin()).first - a.begin());
}

SharedSequences::~SharedSequences() { clear(); }

void SharedSequences::clear() {
    for (const Sequence& sequence : sequences_) engine_.close(sequence.id);
    sequences_.clear();
}

size_t SharedSequences::known_of(const Sequence& sequence, std::span<const int32_t> tokens,
                                 size_t most) const {
    const size_t known = std::min({common_prefix(sequence.tokens, tokens), sequence.done, most});
    return known == sequence.done || !engine_.capabilities().evicts ? known : 0;
}

size_t SharedSequences::known(std::span<const int32_t> tokens, size_t most) const {
    size_t known = 0;
    for (const Sequence& sequence : sequences_)
        if (sequence.adapter < 0) known = std::max(known, known_of(sequence, tokens, most));
    return known;
}

SharedSequences::Match SharedSequences::longest(std::span<const int32_t> tokens, size_t most, int32_t adapter,
                                                const Sequence* except) {
    Match out;
    for (Sequence& sequence : sequences_) {
        if (sequence.adapter != adapter || &sequence == except) continue;
        const size_t known = known_of(sequence, tokens, most);
        // One that has ended can be taken over.
        if (known > out.tokens ||
            (known == out.tokens && known > 0 && out.source->running && !sequence.running))
            out = {&sequence, known};
    }
    if (out.source != nullptr) out.source->used = ++uses_;
    return out;
}

SharedSequences::Sequence* SharedSequences::begin(std::span<const int32_t> tokens, size_t room, size_t most,
                                                  int32_t adapter) {
    const Match known = longest(tokens, most, adapter, nullptr);
    Sequence* source = known.source;
    size_t done = known.tokens;
    const size_t wanted = room_for(room);
    const bool ended = source != nullptr && !source->running;
    const size_t lost = source != nullptr ? source->done - done : 0;
    const auto taken_over = [&] {
        engine_.truncate(source->id, static_cast<int64_t>(done));
        *source = {source->id, {tokens.begin(), tokens.end()}, done, source->room, true, ++uses_, adapter};
        return source;
    };
    if (ended && lost == 0 && has_room(*source, wanted)) return taken_over();
    // What others may still begin with stays while there is room, and with it what they were last used for.
    std::optional<int32_t> id = engine_.open(static_cast<int64_t>(wanted));
    if (!id && shrink_ended()) id = engine_.open(static_cast<int64_t>(wanted));
    if (!id && ended && lost <= done && has_room(*source, wanted)) return taken_over();
    while (!id && close_one_ended(source)) id = engine_.open(static_cast<int64_t>(wanted));
    if (!id && ended) {
        if (has_room(*source, wanted)) return taken_over();
        close_one_ended(nullptr);
        source = nullptr;
        done = 0;
        id = engine_.open(static_cast<int64_t>(wanted));
    }
    if (!id) return nullptr;
    if (adapter >= 0) engine_.use_adapter(*id, adapter);
    if (done > 0) engine_.copy(source->id, *id, static_cast<int64_t>(done));
    if (done > 0 && ended && lost == 0) forget(*source);  // the new one has all of it
    sequences_.push_back({*id, {tokens.begin(), tokens.end()}, done, wanted, true, ++uses_, adapter});
    return &sequences_.back();
}

size_t SharedSequences::catch_up(Sequence& sequence, size_t most) {
    const auto [source, done] = longest(sequence.tokens, most, sequence.adapter, &sequence);
    if (done <= sequence.done) return sequence.done;
    engine_.truncate(sequence.id, 0);
    engine_.copy(source->id, sequence.id, static_cast<int64_t>(done));
    return sequence.done = done;
}

std::vector<const SharedSequences::Sequence*> SharedSequences::kept() const {
    std::vector<const Sequence*> out;
    for (const Sequence& sequence : sequences_)
        if (!sequence.running && sequence.adapter < 0 && sequence.done > 0) out.push_back(&sequence);
    std::ranges::sort(out, {}, &Sequence::used);
    return out;
}

bool SharedSequences::restore(std::vector<int32_t> tokens, std::span<const std::byte> saved) {
    const size_t done = tokens.size(), room = room_for(done);
    if (static_cast<int64_t>(done) > sequence_room(engine_) || done > room) return false;
    const std::optional<int32_t> id = engine_.open(static_cast<int64_t>(room));
    if (!id) return false;
    sequences_.push_back({*id, std::move(tokens), 0, room, false, --earlier_uses_});
    try {
        engine_.load_tokens(*id, static_cast<int64_t>(done), saved);
    } catch (...) {
        forget(sequences_.back());
        throw;
    }
    sequences_.back().done = done;
    return true;
}

size_t SharedSequences::room_for(size_t tokens) const {
    const Capabilities& can = engine_.capabilities();
    const auto most = static_cast<size_t>(std::min(can.context, can.kv_tokens));
    if (rooms_ == Rooms::exact) return std::min(tokens, most);
    if (can.kv_tokens < 2 * can.context) return most;
    return std::min((tokens + kRoomUnit - 1) / kRoomUnit * kRoomUnit, most);
}

void SharedSequences::forget(const Sequence& sequence) {
    const auto found = std::find_if(sequences_.begin(), sequences_.end(),
                                    [&](const Sequence& one) { return &one == &sequence; });
    const int32_t id = sequence.id;
    sequences_.erase(found);
    try {
        engine_.close(id);
    } catch (const std::exception&) {  // after a failed step
    }
}

bool SharedSequences::has_room(Sequence& sequence, size_t tokens) {
    if (sequence.room < tokens) {
        if (!engine_.resize(sequence.id, static_cast<int64_t>(tokens))) return false;
        sequence.room = tokens;
    }
    return true;
}

// Gives back the rooms that ended sequences had for more tokens.
bool SharedSequences::shrink_ended() {
    if (rooms_ != Rooms::exact || engine_.capabilities().evicts) return false;
    bool any = false;
    for (Sequence& sequence : sequences_) {
        const size_t needed = std::max<size_t>(sequence.done, 1);
        if (sequence.running || sequence.room <= needed) continue;
        engine_.truncate(sequence.id, static_cast<int64_t>(sequence.done));
        if (!engine_.resize(sequence.id, static_cast<int64_t>(needed))) continue;
        sequence.room = needed;
        any = true;
    }
    return any;
}

// The one that was used longest ago.
bool SharedSequences::close_one_ended(const Sequence* except) {
    auto oldest = sequences_.end();
    for (auto it = sequences_.begin(); it != sequences_.end(); ++it) {
        if (!it->running && &*it != except && (oldest == sequences_.end() || it->used < oldest->used))
            oldest = it;
    }
    if (oldest == sequences_.end()) return false;
    engine_.close(oldest->id);
    sequences_.erase(oldest);
    return true;
}

}  // namespace refold
