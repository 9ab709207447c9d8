#include "generation/draft_model.h"

#include <algorithm>

#include "core/error.h"
#include "model/load.h"

namespace refold {
namespace {

void check_vocabulary(const Tokenizer& draft, const Tokenizer& model, const std::string& path) {
    if (draft.size() != model.size()) {
        fail(ErrorCode::usage, "draft model",
             "'{}' has {} tokens, the model {} - their vocabularies must be equal", path, draft.size(),
             model.size());
    }
    for (int32_t token = 0; token < model.size(); ++token) {
        const std::string drafts = draft.piece(token, true), models = model.piece(token, true);
        if (drafts == models) continue;
        fail(ErrorCode::usage, "draft model",
             "token {} is '{}' in '{}', but '{}' in the model - their vocabularies must be equal", token,
             drafts, path, models);
    }
}

}  // namespace

std::unique_ptr<Engine> load_draft_model(const std::string& path, const EngineOptions& options,
                                         const Engine& engine, const Tokenizer& tokenizer) {
    check_vocabulary(Tokenizer(path), tokenizer, path);
    EngineOptions own = options;
    own.by_loop = own.f32 = false;
    own.eviction = {};
    own.rope = {};
    own.resident = engine.resident_weights();
    auto draft = make_engine(load_model(path), own);
    if (!draft->capabilities().causal || !draft->capabilities().logits)
        fail(ErrorCode::usage, "draft model", "'{}' is an encoder, it generates no text", path);
    if (draft->capabilities().n_vocab != engine.capabilities().n_vocab) {
        fail(ErrorCode::usage, "draft model", "'{}' has logits of {} tokens, the model of {}", path,
             draft->capabilities().n_vocab, engine.capabilities().n_vocab);
    }
    return draft;
}

bool DraftModel::draft(std::span<Sequence* const> sequences, int64_t most) {
    constexpr int64_t kPart = 4;
    std::vector<Drafting> all;
    bool read = false;
    rows_.clear();
    for (Sequence* sequence : sequences) {
        const int64_t wanted = sequence->draft_room(most);
        Place* place = wanted > 0 ? place_of(*sequence) : nullptr;
        if (place == nullptr) continue;
        forget_refused(*place, *sequence);
        const auto tokens = static_cast<int64_t>(sequence->tokens().size());
        const int64_t unread = tokens - static_cast<int64_t>(place->tokens.size());
        const bool text = unread > most + 1;  // not only the latest drafts and the token after them
        if (text && !reads_at_once_ && kPart * sequence->generated() < unread) continue;
        // The tokens themselves and all drafts but the last one.
        const int64_t room = std::min(wanted, place->room - tokens + 1);
        if (room <= 0) continue;
        if (text) read_text(*place, *sequence);
        read |= text;
        all.push_back({sequence, place, room});
    }
    std::erase_if(all, [this](const Drafting& one) {
        const auto unread = static_cast<int64_t>(one.sequence->tokens().size() - one.place->tokens.size());
        const bool fits = static_cast<int64_t>(rows_.size()) + unread <= engine_.capabilities().max_rows;
        if (fits) add_rows(one);
        return !fits;
    });
    while (!all.empty()) step(all);
    return read;
}

// One more draft of each.
void DraftModel::step(std::vector<Drafting>& all) {
    const StepOutput output = engine_.step({.rows = rows_});
    const auto width = static_cast<size_t>(engine_.capabilities().n_vocab);
    for (size_t i = 0; i < all.size(); ++i) all[i].sequence->draft(output.logits.subspan(i * width, width));
    std::erase_if(all, [](Drafting& one) { return --one.wanted == 0; });
    rows_.clear();
    for (const Drafting& one : all) add_rows(one);
}

// All tokens but the newest one.
void DraftModel::read_text(Place& place, const Sequence& sequence) {
    const std::span<const int32_t> text(sequence.tokens().data(), sequence.tokens().size() - 1);
    while (place.tokens.size() < text.size()) {
        const size_t first = place.tokens.size(),
                     count =
                         std::min(static_cast<size_t>(engine_.capabilities().max_rows), text.size() - first);
        rows_.clear();
        for (size_t i = first; i < first + count; ++i)
            rows_.push_back({.sequence = place.id, .position = static_cast<int64_t>(i), .token = text[i]});
        engine_.step({.rows = rows_});
        place.tokens.insert(place.tokens.end(), text.begin() + static_cast<ptrdiff_t>(first),
                            text.begin() + static_cast<ptrdiff_t>(first + count));
    }
    rows_.clear();
}

// The tokens that the engine does not have yet, drafts included.
void DraftModel::add_rows(const Drafting& drafting) {
    Place& place = *drafting.place;
    const int64_t end = drafting.sequence->total();
    for (auto i = static_cast<int64_t>(place.tokens.size()); i < end; ++i) {
        const int32_t token = drafting.sequence->token(i);
        rows_.push_back({.sequence = place.id, .position = i, .token = token, .logits = i + 1 == end});
        place.tokens.push_back(token);
    }
}

// Null where there is no room.
DraftModel::Place* DraftModel::place_of(const Sequence& sequence) {
    if (const auto found = places_.find(sequence.id()); found != places_.end()) return &found->second;
    const auto tokens = static_cast<int64_t>(sequence.tokens().size());
    const int64_t room = std::min(sequence_room(engine_), tokens + sequence.left());
    const auto id = engine_.open(room);
    if (!id) return nullptr;
    return &(places_[sequence.id()] = {.id = *id, .room = room});
}

void DraftModel::forget_refused(Place& place, const Sequence& sequence) {
    const auto& tokens = sequence.tokens();
    const size_t most = std::min(place.tokens.size(), tokens.size() - 1);
    while (place.agreed < most && place.tokens[place.agreed] == tokens[place.agreed]) ++place.agreed;
    place.tokens.resize(place.agreed);
    engine_.truncate(place.id, static_cast<int64_t>(place.agreed));
}

void DraftModel::end(const Sequence& sequence) {
    const auto found = places_.find(sequence.id());
    if (found == places_.end()) return;
    engine_.close(found->second.id);
    places_.erase(found);
}

void DraftModel::clear() {
    for (const auto& [id, place] : places_) engine_.close(place.id);
    places_.clear();
}

}  // namespace refold
