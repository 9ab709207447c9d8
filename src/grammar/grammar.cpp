#include "grammar/grammar.h"

#include <xgrammar/compiler.h>
#include <xgrammar/matcher.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/text.h"
#include "grammar/schema.h"

namespace refold {
namespace {

using nlohmann::json;

// Where this thread's warnings of XGrammar go; null: nowhere.
thread_local std::string* warnings = nullptr;

// What XGrammar warns of on this thread while it lives: it goes on without what it does not know.
struct Warnings {
    std::string text;

    Warnings() { warnings = &text; }
    ~Warnings() { warnings = nullptr; }
    Warnings(const Warnings&) = delete;
    Warnings& operator=(const Warnings&) = delete;
};

constexpr size_t kMostText = 256 << 10;  // bytes of a format
// White space between the parts of a JSON document, so that a model cannot go on with it forever.
constexpr int kMostWhitespace = 32;
constexpr int kWarning = 2;

std::string quoted(const std::string& text) { return json(text).dump(-1, ' ', true); }

std::string grammar_of(const std::vector<std::string>& choices) {
    std::string rule = "root ::= ";
    for (size_t i = 0; i < choices.size(); ++i) rule += (i == 0 ? "" : " | ") + quoted(choices[i]);
    return rule;
}

size_t size_of(const OutputFormat& format) {
    size_t bytes = format.text.size();
    for (const std::string& choice : format.choices) bytes += choice.size() + sizeof(std::string);
    return bytes;
}

// XGrammar's parsers call themselves for what is in brackets.
void check_nesting(const std::string& text, const char* what) {
    constexpr int kDeepest = 64;
    int depth = 0;
    for (const char c : text) {
        if (c == '(' || c == '[' || c == '{') ++depth;
        if (c == ')' || c == ']' || c == '}') --depth;
        if (depth > kDeepest) fail(ErrorCode::usage, what, "it is nested too deep");
    }
}

// Bytes at the end of `text` that begin a character; none when no bytes after `text` can make it UTF-8.
std::optional<size_t> unfinished(std::string_view text) {
    const size_t at = find_invalid_utf8(text);
    if (at == std::string_view::npos) return 0;
    std::string rest(text.substr(at));
    const auto lead = static_cast<unsigned char>(rest.front());
    const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead < 0xC2 || lead > 0xF4 || rest.size() >= length) return std::nullopt;
    const size_t given = rest.size();
    if (given > 1) rest.resize(length, '\x80');
    return given == 1 || find_invalid_utf8(rest) == std::string::npos ? std::optional(given) : std::nullopt;
}

// Whether a token can be part of UTF-8: it may begin with the rest of a character.
bool can_be_text(std::string_view piece) {
    while (!piece.empty() && (static_cast<unsigned char>(piece.front()) & 0xC0) == 0x80)
        piece.remove_prefix(1);
    return unfinished(piece).has_value();
}

// JSON writes other control characters with escapes. A tab would be white space between its parts only, but
// XGrammar lets it, as all of them, into strings of bounded length.
bool can_be_json(std::string_view piece) {
    return std::none_of(piece.begin(), piece.end(), [](char c) {
        return static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r';
    });
}

bool is_json(OutputFormat::Kind kind) {
    return kind == OutputFormat::Kind::json || kind == OutputFormat::Kind::json_schema;
}

const char* name_of(OutputFormat::Kind kind) {
    switch (kind) {
        case OutputFormat::Kind::grammar: return "grammar";
        case OutputFormat::Kind::regex: return "regular expression";
        case OutputFormat::Kind::choice: return "choices";
        default: return "schema";
    }
}

}  // namespace
}  // namespace refold

// XGrammar's messages come here (XGRAMMAR_LOG_CUSTOMIZE).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message);
void LogMessageImpl(const std::string&, int, int level, const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) { throw std::runtime_error(message); }

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
    if (level < refold::kWarning || refold::warnings == nullptr) return;
    *refold::warnings += (refold::warnings->empty() ? "" : "; ") + message;
}

}  // namespace xgrammar

namespace refold {

struct Grammar::Impl {
    xgrammar::CompiledGrammar compiled;
    int64_t n_vocab;
};

size_t Grammar::bytes() const { return impl_->compiled.MemorySizeBytes(); }

struct GrammarCompiler::Impl {
    Impl(const Tokenizer& t, int64_t vocab, size_t bytes)
        : tokenizer(t), n_vocab(vocab), cache_bytes(bytes) {}

    const Tokenizer& tokenizer;
    const int64_t n_vocab;
    const size_t cache_bytes;

    struct Kept {
        OutputFormat format;
        std::shared_ptr<const Grammar> grammar;
    };
    std::mutex mutex;
    std::vector<Kept> kept;  // the one used last at the end
    std::optional<xgrammar::GrammarCompiler> of_text, of_json;

    // Made when it is first needed: a vocabulary of 262,144 tokens takes a moment.
    xgrammar::GrammarCompiler& compiler(bool json) {
        const std::lock_guard lock(mutex);
        auto& made = json ? of_json : of_text;
        if (!made) made.emplace(vocabulary(json), 1, false);
        return *made;
    }

    xgrammar::TokenizerInfo vocabulary(bool json) const {
        std::vector<std::string> pieces(static_cast<size_t>(n_vocab));  // empty ones never come
        std::vector<int32_t> ends;
        for (int32_t id = 0; id < tokenizer.size() && id < n_vocab; ++id) {
            if (tokenizer.is_end_of_generation(id)) {
                ends.push_back(id);
                continue;
            }
            std::string piece = tokenizer.piece(id, false);  // none for special tokens
            if (can_be_text(piece) && (!json || can_be_json(piece)))
                pieces[static_cast<size_t>(id)] = std::move(piece);
        }
        return {pieces, xgrammar::VocabType::RAW, static_cast<int>(n_vocab), ends};
    }

    xgrammar::CompiledGrammar compiled(const OutputFormat& format) {
        xgrammar::GrammarCompiler& compiler = this->compiler(is_json(format.kind));
        const auto schema = [&](const std::string& text) {
            return compiler.CompileJSONSchema(text, true, std::nullopt, std::nullopt, true, kMostWhitespace);
        };
        switch (format.kind) {
            case OutputFormat::Kind::json: return schema(R"({"type":"object","additionalProperties":true})");
            case OutputFormat::Kind::json_schema:
                return schema(enforceable_schema(parse_schema(format.text)).dump());
            case OutputFormat::Kind::regex:
                check_nesting(format.text, name_of(format.kind));
                return compiler.CompileRegex(format.text);
            case OutputFormat::Kind::choice:
                if (format.choices.empty()) fail(ErrorCode::usage, "choices", "there are none");
                return compiler.CompileGrammar(grammar_of(format.choices));
            default:
                check_nesting(format.text, name_of(format.kind));
                return compiler.CompileGrammar(format.text);
        }
    }

    std::shared_ptr<const Grammar> found(const OutputFormat& format) {
        const std::lock_guard lock(mutex);
        const auto at =
            std::find_if(kept.begin(), kept.end(), [&](const Kept& k) { return k.format == format; });
        if (at == kept.end()) return nullptr;
        std::rotate(at, at + 1, kept.end());
        return kept.back().grammar;
    }

    void keep(const OutputFormat& format, const std::shared_ptr<const Grammar>& grammar) {
        const std::lock_guard lock(mutex);
        kept.push_back({format, grammar});
        size_t bytes = 0;
        for (const Kept& k : kept) bytes += k.grammar->bytes() + size_of(k.format);
        while (bytes > cache_bytes) {
            bytes -= kept.front().grammar->bytes() + size_of(kept.front().format);
            kept.erase(kept.begin());
        }
    }
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int64_t n_vocab, size_t cache_bytes)
    : impl_(std::make_unique<Impl>(tokenizer, n_vocab, cache_bytes)) {}
GrammarCompiler::~GrammarCompiler() = default;

std::shared_ptr<const Grammar> GrammarCompiler::compile(const OutputFormat& format) {
    if (format.kind == OutputFormat::Kind::any) return nullptr;
    if (size_of(format) > kMostText)
        fail(ErrorCode::usage, name_of(format.kind), "{} bytes are too many; {} are allowed", size_of(format),
             kMostText);
    if (auto grammar = impl_->found(format)) return grammar;
    const Warnings ignored;
    std::shared_ptr<const Grammar> grammar;
    try {
        grammar = std::make_shared<Grammar>(
            std::make_shared<Grammar::Impl>(Grammar::Impl{impl_->compiled(format), impl_->n_vocab}));
    } catch (const Error&) {
        throw;
    } catch (const std::exception& error) {
        fail(ErrorCode::usage, name_of(format.kind), "{}", error.what());
    }
    if (!ignored.text.empty())
        fail(ErrorCode::usage, name_of(format.kind), "not all of it can be enforced: {}", ignored.text);
    impl_->keep(format, grammar);
    return grammar;
}

struct GrammarState::Impl {
    std::shared_ptr<const Grammar> grammar;
    xgrammar::GrammarMatcher matcher;
    std::vector<int32_t> bits;    // of the tokens that may come next
    std::string unfinished = {};  // bytes that begin a character
    bool filled = false, all = false;
    std::vector<float> masked = {};

    const std::string& piece(size_t token) const {
        return grammar->impl().compiled.GetTokenizerInfo().GetDecodedVocab()[token];
    }

    void fill() {
        if (std::exchange(filled, true)) return;
        int64_t shape[] = {static_cast<int64_t>(bits.size())};
        DLTensor tensor{bits.data(), {kDLCPU, 0}, 1, xgrammar::GetBitmaskDLType(), shape, nullptr, 0};
        all = !matcher.FillNextTokenBitmask(&tensor);
        // XGrammar takes any bytes of the right length for a character.
        for (size_t token = 0; !unfinished.empty() && token < bits.size() * 32; ++token) {
            if (allows(token) && !refold::unfinished(unfinished + piece(token)))
                bits[token / 32] &= ~(1 << (token % 32));
        }
    }
    bool allows(size_t token) const { return all || (bits[token / 32] >> (token % 32) & 1) != 0; }
};

GrammarState::GrammarState(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrammarState::GrammarState(std::shared_ptr<const Grammar> grammar) {
    const Grammar::Impl& g = grammar->impl();
    const auto words = static_cast<size_t>(xgrammar::GetBitmaskSize(static_cast<int>(g.n_vocab)));
    impl_ = std::make_unique<Impl>(
        Impl{std::move(grammar), xgrammar::GrammarMatcher(g.compiled), std::vector<int32_t>(words)});
}
GrammarState::~GrammarState() = default;
GrammarState::GrammarState(GrammarState&&) noexcept = default;
GrammarState& GrammarState::operator=(GrammarState&&) noexcept = default;

GrammarState GrammarState::copy() const {
    return GrammarState(std::make_unique<Impl>(Impl{impl_->grammar, impl_->matcher.Fork(), impl_->bits,
                                                    impl_->unfinished, impl_->filled, impl_->all}));
}

bool GrammarState::allows(int32_t token) {
    impl_->fill();
    return impl_->allows(static_cast<size_t>(token));
}

std::span<const float> GrammarState::masked(std::span<const float> logits) {
    impl_->fill();
    if (impl_->all) return logits;
    impl_->masked.assign(logits.size(), -std::numeric_limits<float>::infinity());
    bool any = false;
    for (size_t word = 0; word < impl_->bits.size(); ++word) {
        for (auto bits = static_cast<uint32_t>(impl_->bits[word]); bits != 0; bits &= bits - 1) {
            const size_t token = word * 32 + static_cast<size_t>(std::countr_zero(bits));
            if (token >= logits.size()) break;
            impl_->masked[token] = logits[token];
            any = true;
        }
    }
    if (!any)
        fail(ErrorCode::input, "grammar", "no token of the vocabulary can follow what the format needs here");
    return impl_->masked;
}

void GrammarState::accept(int32_t token) {
    if (!impl_->matcher.AcceptToken(token))
        fail(ErrorCode::internal, "grammar", "token {} may not come next", token);
    impl_->filled = false;
    if (ended()) return;
    impl_->unfinished += impl_->piece(static_cast<size_t>(token));
    const size_t left = unfinished(impl_->unfinished).value_or(0);
    impl_->unfinished.erase(0, impl_->unfinished.size() - left);
}

bool GrammarState::ended() const { return impl_->matcher.IsTerminated(); }

}  // namespace refold
