// Drafts from a smaller model with the same vocabulary (speculative decoding, Leviathan et al. 2023). It
// draws with the numbers that the model itself draws with at the same place, so that its tokens are mostly
// the same.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "generation/sequence.h"
#include "text/tokenizer.h"

namespace refold {

// An engine for the draft model at `path`, with room for the sequences of `engine`, made with `options`.
// Throws as load_model() and make_engine(); Error(usage) for a model whose vocabulary is not `tokenizer`'s,
// naming the first difference.
std::unique_ptr<Engine> load_draft_model(const std::string& path, const EngineOptions& options,
                                         const Engine& engine, const Tokenizer& tokenizer);

class DraftModel {
public:
    // `engine`, which has no sequences yet, outlives it. The model reads a sequence's text before its first
    // draft. With `reads_at_once` it does so at once, else only when a quarter as many tokens have been
    // generated: drafts for a short answer would not make up for it.
    DraftModel(Engine& engine, bool reads_at_once) : engine_(engine), reads_at_once_(reads_at_once) {}

    // Each of the sequences that can use them gets up to `most` drafts. Returns whether the model has read
    // text beside the latest few tokens. Throws what the engine throws.
    bool draft(std::span<Sequence* const> sequences, int64_t most);
    // The sequence has ended: gives its room back.
    void end(const Sequence& sequence);
    // All have ended.
    void clear();

private:
    // A sequence in engine_.
    struct Place {
        int32_t id = 0;
        int64_t room = 0;                  // tokens
        std::vector<int32_t> tokens = {};  // that the engine has
        size_t agreed = 0;                 // of them, those known to be the sequence's
    };
    struct Drafting {
        Sequence* sequence;
        Place* place;
        int64_t wanted;
    };
    Place* place_of(const Sequence& sequence);
    void read_text(Place& place, const Sequence& sequence);
    void forget_refused(Place& place, const Sequence& sequence);
    void add_rows(const Drafting& drafting);
    void step(std::vector<Drafting>& all);

    Engine& engine_;
    const bool reads_at_once_;
    std::map<int32_t, Place> places_;  // by Sequence::id()
    std::vector<Row> rows_;            // of a step
};

}  // namespace refold
