// Structured output: grammars that bound what a model may generate, by XGrammar.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "refold/error.h"
#include "refold/output_format.h"
#include "refold/tokenizer.h"

namespace refold {

// A format that no text can keep here, or that takes too long to follow: who wrote it is to blame.
struct FormatError : Error {
    explicit FormatError(const std::string& why) : Error(ErrorCode::input, "[grammar] " + why) {}
};

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

// White space between the parts of a JSON document, so that a model cannot go on with it forever.
constexpr int kMostFormatWhitespace = 32;

// The schema as enforceable_schema() gives it. Throws Error(usage) as GrammarCompiler::compile() does,
// without compiling it.
nlohmann::ordered_json checked_schema(const std::string& schema);

// Throws Error(usage) of `what` for a text whose brackets are nested too deep: XGrammar's parsers call
// themselves for what is in brackets.
void check_nesting(const std::string& text, const char* what);

// An answer that has more than one part: an XGrammar structural tag's "format" (structure.h).
struct AnswerStructure {
    std::string format;               // JSON; empty: any text
    bool json = false;                // no control characters, as a part is a JSON document
    std::vector<int32_t> marks = {};  // special tokens that it may have

    bool operator==(const AnswerStructure&) const = default;
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

    // Null for OutputFormat::Kind::any. Throws Error(usage) that says what is wrong, or which part of a
    // schema cannot be guaranteed (enforceable_schema()); FormatError for too much work (format_work.h).
    std::shared_ptr<const Grammar> compile(const OutputFormat& format);
    // Null for any text. Throws Error(usage) that says what is wrong.
    std::shared_ptr<const Grammar> compile_structure(const AnswerStructure& structure);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// How far one sequence has come in a grammar. All but copy() and ended() throw FormatError once the text has
// cost more than 0.2 s of processor time and 2 ms per token, or one token too much: very ambiguous formats
// do.
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
