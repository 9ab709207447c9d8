#include "grammar/grammar.h"

#include <time.h>
#include <xgrammar/compiler.h>
#include <xgrammar/matcher.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <variant>

#include "core/error.h"
#include "grammar/format_work.h"
#include "grammar/gbnf.h"
#include "grammar/schema.h"
#include "grammar/token_text.h"
#include "grammar/xgrammar_errors.h"

namespace refold {
namespace {

using nlohmann::json;

constexpr size_t kMostText = 256 << 10;                           // bytes of a format
constexpr size_t kMostStepsAtOnce = FormatWork::kMostSteps / 50;  // of FormatWork, for one token of a text

// A grammar's escapes are code points, JSON's halves of surrogate pairs: so characters stay as they are.
std::string quoted(const std::string& text) { return json(text).dump(); }

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

bool is_json(OutputFormat::Kind kind) {
    return kind == OutputFormat::Kind::json || kind == OutputFormat::Kind::json_schema;
}

size_t size_of(const AnswerStructure& structure) {
    return structure.format.size() + structure.marks.size() * sizeof(int32_t);
}

const char* name_of(OutputFormat::Kind kind) {
    switch (kind) {
        case OutputFormat::Kind::grammar: return "grammar";
        case OutputFormat::Kind::regex: return "regular expression";
        case OutputFormat::Kind::choice: return "choices";
        default: return "schema";
    }
}

double thread_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The processor time that one text has cost. What an ambiguous format costs grows with every token, and the
// other sequences of a step wait meanwhile.
class Effort {
public:
    template <typename Work>
    auto spend(Work&& work) {
        constexpr double kAtFirst = 0.2, kPerToken = 0.002;  // seconds; common formats need a tenth of it
        const double begin = thread_seconds();
        const FormatWork bounded({}, kMostStepsAtOnce);
        const auto result = work();
        seconds_ += thread_seconds() - begin;
        if (seconds_ > kAtFirst + kPerToken * static_cast<double>(tokens_)) throw format_takes_too_long();
        return result;
    }
    void count_token() { ++tokens_; }

private:
    double seconds_ = 0;
    int64_t tokens_ = 0;
};

void check_size(const char* what, size_t bytes) {
    if (bytes > kMostText)
        fail(ErrorCode::usage, what, "{} bytes are too many; {} are allowed", bytes, kMostText);
}

}  // namespace

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
        std::variant<OutputFormat, AnswerStructure> of;
        size_t bytes;
        std::shared_ptr<const Grammar> grammar;
    };
    std::mutex mutex;
    std::vector<Kept> kept;  // the one used last at the end
    // By the special tokens that formats may have, without and with control characters.
    std::map<std::pair<bool, std::vector<int32_t>>, xgrammar::GrammarCompiler> compilers;

    // Made when it is first needed: a vocabulary of 262,144 tokens takes a moment.
    xgrammar::GrammarCompiler& compiler(bool json, const std::vector<int32_t>& marks = {}) {
        const std::lock_guard lock(mutex);
        const auto key = std::pair(json, marks);
        auto made = compilers.find(key);
        if (made == compilers.end())
            made = compilers.emplace(key, xgrammar::GrammarCompiler(vocabulary(json, marks), 1, false)).first;
        return made->second;
    }

    xgrammar::TokenizerInfo vocabulary(bool json, const std::vector<int32_t>& marks) const {
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
        for (const int32_t id : marks)
            if (id < n_vocab) pieces[static_cast<size_t>(id)] = tokenizer.piece(id, true);
        return {pieces, xgrammar::VocabType::RAW, static_cast<int>(n_vocab), ends};
    }

    xgrammar::CompiledGrammar compiled(const OutputFormat& format) {
        xgrammar::GrammarCompiler& compiler = this->compiler(is_json(format.kind));
        const auto schema = [&](const std::string& text) {
            return compiler.CompileJSONSchema(text, true, std::nullopt, std::nullopt, true,
                                              kMostFormatWhitespace);
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
            default: return compiler.CompileGrammar(read_gbnf(format.text));
        }
    }

    xgrammar::CompiledGrammar compiled(const AnswerStructure& structure) {
        return compiler(structure.json, structure.marks)
            .CompileStructuralTag(R"({"type":"structural_tag","format":)" + structure.format + "}");
    }

    template <typename Format>
    std::shared_ptr<const Grammar> found(const Format& format) {
        const std::lock_guard lock(mutex);
        const auto at = std::find_if(kept.begin(), kept.end(), [&](const Kept& k) {
            const auto* own = std::get_if<Format>(&k.of);
            return own != nullptr && *own == format;
        });
        if (at == kept.end()) return nullptr;
        std::rotate(at, at + 1, kept.end());
        return kept.back().grammar;
    }

    void keep(Kept what) {
        const std::lock_guard lock(mutex);
        kept.push_back(std::move(what));
        size_t bytes = 0;
        for (const Kept& k : kept) bytes += k.bytes;
        while (bytes > cache_bytes) {
            bytes -= kept.front().bytes;
            kept.erase(kept.begin());
        }
    }

    template <typename Format>
    std::shared_ptr<const Grammar> compile(const Format& format, const char* name) {
        check_size(name, size_of(format));
        if (auto grammar = found(format)) return grammar;
        std::optional<FormatWork> own;
        if (!FormatWork::active()) own.emplace();
        auto grammar = std::make_shared<const Grammar>(enforced(name, [&] {
            return std::make_shared<Grammar::Impl>(Grammar::Impl{compiled(format), n_vocab});
        }));
        keep({format, grammar->bytes() + size_of(format), grammar});
        return grammar;
    }
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int64_t n_vocab, size_t cache_bytes)
    : impl_(std::make_unique<Impl>(tokenizer, n_vocab, cache_bytes)) {}
GrammarCompiler::~GrammarCompiler() = default;

std::shared_ptr<const Grammar> GrammarCompiler::compile(const OutputFormat& format) {
    if (format.kind == OutputFormat::Kind::any) return nullptr;
    return impl_->compile(format, name_of(format.kind));
}

std::shared_ptr<const Grammar> GrammarCompiler::compile_structure(const AnswerStructure& structure) {
    if (structure.format.empty()) return nullptr;
    return impl_->compile(structure, "structure");
}

void check_nesting(const std::string& text, const char* what) {
    constexpr int kDeepest = 64;
    int depth = 0;
    for (const char c : text) {
        if (c == '(' || c == '[' || c == '{') ++depth;
        if (c == ')' || c == ']' || c == '}') --depth;
        if (depth > kDeepest) fail(ErrorCode::usage, what, "it is nested too deep");
    }
}

nlohmann::ordered_json checked_schema(const std::string& schema) {
    const char* const what = name_of(OutputFormat::Kind::json_schema);
    check_size(what, schema.size());
    nlohmann::ordered_json out = enforceable_schema(parse_schema(schema));
    enforced(what, [&] {
        return xgrammar::Grammar::FromJSONSchema(out.dump(), true, std::nullopt, std::nullopt, true,
                                                 kMostFormatWhitespace);
    });
    return out;
}

struct GrammarState::Impl {
    std::shared_ptr<const Grammar> grammar;
    xgrammar::GrammarMatcher matcher;
    std::vector<int32_t> bits;    // of the tokens that may come next
    std::string unfinished = {};  // bytes that begin a character
    bool filled = false, all = false;
    std::vector<float> masked = {};
    Effort effort = {};

    const std::string& piece(size_t token) const {
        return grammar->impl().compiled.GetTokenizerInfo().GetDecodedVocab()[token];
    }

    void fill() {
        if (std::exchange(filled, true)) return;
        int64_t shape[] = {static_cast<int64_t>(bits.size())};
        DLTensor tensor{bits.data(), {kDLCPU, 0}, 1, xgrammar::GetBitmaskDLType(), shape, nullptr, 0};
        all = !effort.spend([&] { return matcher.FillNextTokenBitmask(&tensor); });
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
    const FormatWork bounded({}, kMostStepsAtOnce);
    impl_ = std::make_unique<Impl>(
        Impl{std::move(grammar), xgrammar::GrammarMatcher(g.compiled), std::vector<int32_t>(words)});
}
GrammarState::~GrammarState() = default;
GrammarState::GrammarState(GrammarState&&) noexcept = default;
GrammarState& GrammarState::operator=(GrammarState&&) noexcept = default;

GrammarState GrammarState::copy() const {
    return GrammarState(std::make_unique<Impl>(Impl{impl_->grammar,
                                                    impl_->matcher.Fork(),
                                                    impl_->bits,
                                                    impl_->unfinished,
                                                    impl_->filled,
                                                    impl_->all,
                                                    {},
                                                    impl_->effort}));
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
    if (!any) throw FormatError("no token of the vocabulary can follow what the format needs here");
    return impl_->masked;
}

void GrammarState::accept(int32_t token) {
    impl_->effort.count_token();
    if (!impl_->effort.spend([&] { return impl_->matcher.AcceptToken(token); }))
        fail(ErrorCode::internal, "grammar", "token {} may not come next", token);
    impl_->filled = false;
    if (ended()) return;
    impl_->unfinished += impl_->piece(static_cast<size_t>(token));
    const size_t left = unfinished(impl_->unfinished).value_or(0);
    impl_->unfinished.erase(0, impl_->unfinished.size() - left);
}

bool GrammarState::ended() const { return impl_->matcher.IsTerminated(); }

}  // namespace refold
