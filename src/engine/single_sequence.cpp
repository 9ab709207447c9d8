#include "engine/single_sequence.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/interrupt.h"
#include "engine/finite_logits.h"
#include "model/token_ids.h"

namespace refold {
namespace {

constexpr size_t kNoLogits = std::numeric_limits<size_t>::max();

int32_t opened(Engine& engine) {
    const Capabilities& can = engine.capabilities();
    if (can.loops != 1)
        fail(ErrorCode::internal, "engine", "a single sequence runs all {} loops in one step", can.loops);
    const auto id = engine.open(can.context);
    if (!id) fail(ErrorCode::internal, "engine", "no room for one more sequence of {} tokens", can.context);
    return *id;
}

}  // namespace

SingleSequence::SingleSequence(const Model& model, const EngineOptions& options)
    : own_(make_engine(model, options)), engine_(*own_), id_(opened(engine_)) {}

SingleSequence::SingleSequence(Engine& engine) : engine_(engine), id_(opened(engine)) {}

SingleSequence::~SingleSequence() {
    if (!own_) engine_.close(id_);
}

void SingleSequence::check_room(size_t tokens) const {
    if (tokens == 0) fail(ErrorCode::usage, "engine", "no tokens given");
    const int64_t context = capabilities().context;
    if (const auto count = static_cast<int64_t>(tokens); length_ + count > context) {
        fail(ErrorCode::input, "engine",
             "{} tokens do not fit: {} of {} are used - raise --context or shorten the text", count, length_,
             context);
    }
}

// Before the first step, so that none has run when one of the tokens is wrong.
void SingleSequence::check_tokens(std::span<const int32_t> tokens) const {
    check_room(tokens.size());
    check_token_ids(tokens, capabilities().n_vocab, "engine");
}

void SingleSequence::check_evaluates() const {
    const Capabilities& can = capabilities();
    if (!can.causal)
        fail(ErrorCode::usage, "engine", "'{}' is an encoder: it has no next token to predict", can.family);
    if (can.range) fail(ErrorCode::internal, "engine", "only a range of the model is loaded");
    if (!can.logits) fail(ErrorCode::unsupported, "engine", "'{}' has no output layer", can.family);
}

void SingleSequence::add_rows(size_t count) {
    rows_.assign(count, {});
    int64_t position = length_;
    for (Row& row : rows_) {
        row.sequence = id_;
        row.position = position++;
    }
}

StepOutput SingleSequence::step(const StepInput& input) {
    check_interrupt();
    const StepOutput result = engine_.step(input);
    if (capabilities().causal) length_ += static_cast<int64_t>(rows_.size());
    return result;
}

StepOutput SingleSequence::step(std::span<const int32_t> tokens, size_t first_logits,
                                int64_t sequence_length) {
    add_rows(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
        rows_[i].token = tokens[i];
        rows_[i].logits = i >= first_logits;
    }
    return step({.rows = rows_, .sequence_length = sequence_length});
}

std::span<const float> SingleSequence::evaluate(std::span<const int32_t> tokens) {
    check_evaluates();
    check_tokens(tokens);
    const int64_t total = length_ + static_cast<int64_t>(tokens.size());
    const auto chunk = static_cast<size_t>(capabilities().max_rows);
    std::span<const float> logits;
    for (size_t first = 0; first < tokens.size(); first += chunk) {
        const auto part = tokens.subspan(first, std::min(chunk, tokens.size() - first));
        const bool last = first + part.size() == tokens.size();
        logits = step(part, last ? part.size() - 1 : kNoLogits, total).logits;
    }
    check_finite_logits(logits, capabilities().n_vocab, [&](int64_t) { return length_ - 1; });
    return logits;
}

void SingleSequence::evaluate_all(std::span<const int32_t> tokens, const RowsSink& sink, size_t from) {
    check_evaluates();
    check_tokens(tokens);
    const int64_t total = length_ + static_cast<int64_t>(tokens.size());
    const auto chunk = static_cast<size_t>(capabilities().max_rows);
    const size_t rows = logits_of_step(capabilities().n_vocab);
    for (size_t first = 0, end = 0; first < tokens.size(); first = end) {
        const size_t wanted = std::max(first, from);
        end = std::min({first + chunk, wanted + rows, tokens.size()});
        const StepOutput result = step(tokens.subspan(first, end - first), wanted - first, total);
        check_finite_logits(result.logits, capabilities().n_vocab,
                            [&](int64_t row) { return length_ - static_cast<int64_t>(end - wanted) + row; });
        if (wanted < end) sink(wanted, result.logits);
    }
}

void SingleSequence::evaluate_range(std::span<const float> residual, const RowsSink& sink) {
    const auto width = static_cast<size_t>(capabilities().n_embd);
    if (!capabilities().range || residual.size() % width != 0)
        fail(ErrorCode::internal, "engine", "no range, or {} floats for rows of {}", residual.size(), width);
    const size_t count = residual.size() / width;
    check_room(count);
    const int64_t total = length_ + static_cast<int64_t>(count);
    const auto chunk = static_cast<size_t>(capabilities().max_rows);
    for (size_t first = 0; first < count; first += chunk) {
        add_rows(std::min(chunk, count - first));
        sink(first, step({.rows = rows_,
                          .residual = residual.subspan(first * width, rows_.size() * width),
                          .sequence_length = total})
                        .hidden);
    }
}

void SingleSequence::evaluate_range(std::span<const int32_t> tokens, const RowsSink& sink) {
    if (!capabilities().range || !capabilities().takes_tokens())
        fail(ErrorCode::internal, "engine", "tokens are the input of ranges that begin at layer 0");
    check_tokens(tokens);
    const int64_t total = length_ + static_cast<int64_t>(tokens.size());
    const auto chunk = static_cast<size_t>(capabilities().max_rows);
    for (size_t first = 0; first < tokens.size(); first += chunk) {
        const auto part = tokens.subspan(first, std::min(chunk, tokens.size() - first));
        sink(first, step(part, kNoLogits, total).hidden);
    }
}

Encoding SingleSequence::encode(const EncoderInput& input) {
    const Capabilities& can = capabilities();
    if (can.causal) {
        fail(ErrorCode::usage, "engine", "'{}' is a decoder: token types, masks and encoding need an encoder",
             can.family);
    }
    check_tokens(input.tokens);
    add_rows(input.tokens.size());
    for (size_t i = 0; i < rows_.size(); ++i) {
        rows_[i].token = input.tokens[i];
        rows_[i].logits = can.logits;
    }
    const StepOutput result = step({.rows = rows_, .token_types = input.token_types, .mask = input.mask});
    check_finite_logits(result.logits, can.n_vocab, [](int64_t row) { return row; });
    const auto copy = [](std::span<const float> values) {
        return std::vector<float>(values.begin(), values.end());
    };
    return {copy(result.hidden), copy(result.logits), copy(result.pooled),
            result.score.empty() ? std::nullopt : std::optional(result.score.front())};
}

void SingleSequence::truncate(int64_t length) {
    if (length < 0 || length > length_)
        fail(ErrorCode::usage, "engine", "cannot truncate {} tokens to {}", length_, length);
    engine_.truncate(id_, length);
    length_ = length;
}

}  // namespace refold
