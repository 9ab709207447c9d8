// Structured output: grammars that bound what a model may generate, by XGrammar.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "refold/output_format.h"
#include "refold/tokenizer.h"

namespace refold {

// A format compiled for a vocabulary. Immutable; sequences and threads share it.
class Grammar {
public:
    struct Impl;
    explicit Grammar(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
    const Impl& impl() const { return *impl_; }
    // Approximately what it occupies.
    size_t bytes() const;

private:
    std::shared_ptr<const Impl> impl_;
};

// Compiles formats for one vocabulary, and keeps what was used last. May be used from any thread.
class GrammarCompiler {
public:
    // `n_vocab`: of the logits, at least the tokenizer's. `cache_bytes` bounds what is kept. `tokenizer`
    // outlives it.
    GrammarCompiler(const Tokenizer& tokenizer, int64_t n_vocab, size_t cache_bytes = 64 << 20);
    ~GrammarCompiler();
    GrammarCompiler(const GrammarCompiler&) = delete;
    GrammarCompiler& operator=(const GrammarCompiler&) = delete;

    // Null for OutputFormat::Kind::any. Throws Error(usage) that says what is wrong with the format, or which
    // part of a schema cannot be guaranteed (enforceable_schema()).
    std::shared_ptr<const Grammar> compile(const OutputFormat& format);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// How far one sequence has come in a grammar.
class GrammarState {
public:
    explicit GrammarState(std::shared_ptr<const Grammar> grammar);
    ~GrammarState();
    GrammarState(GrammarState&&) noexcept;
    GrammarState& operator=(GrammarState&&) noexcept;

    // The same state, to go on from by itself.
    GrammarState copy() const;
    // Whether the token may come next. End-of-generation tokens may where the text is complete.
    bool allows(int32_t token);
    // The logits with -infinity for all tokens that may not come next, valid until the next call; `logits`
    // itself where all may. `logits` [n_vocab]. Throws Error(input) where none may.
    std::span<const float> masked(std::span<const float> logits);
    // Goes on by a token that allows() permits; throws Error(internal) for another one.
    void accept(int32_t token);
    // An end-of-generation token was accepted.
    bool ended() const;

private:
    struct Impl;
    explicit GrammarState(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace refold
