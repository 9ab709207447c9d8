#include "engine/single_sequence_engine.h"

#include <algorithm>

#include "core/error.h"
#include "engine/positions.h"
#include "model/token_ids.h"

namespace refold {

void SingleSequenceEngine::check_open(int32_t sequence) const {
    if (!open_ || sequence != 0) fail(ErrorCode::internal, "engine", "sequence {} is not open", sequence);
}

std::optional<int32_t> SingleSequenceEngine::open(int64_t tokens) {
    const int64_t most = capabilities().context;
    if (tokens < 1 || tokens > most)
        fail(ErrorCode::usage, "engine", "a sequence has 1 to {} tokens, got {}", most, tokens);
    if (open_) return std::nullopt;
    open_ = true;
    length_ = 0;
    return 0;
}

void SingleSequenceEngine::close(int32_t sequence) {
    check_open(sequence);
    open_ = false;
}

void SingleSequenceEngine::truncate(int32_t sequence, int64_t length) {
    check_open(sequence);
    if (length < 0 || length > length_)
        fail(ErrorCode::internal, "engine", "sequence 0 has {} tokens, not {}", length_, length);
    if (capabilities().evicts && length != 0 && length != length_) {
        fail(ErrorCode::usage, "engine",
             "cannot truncate {} tokens to {}: rows of the KV cache may have been evicted - start again from "
             "0",
             length_, length);
    }
    length_ = length;
}

void SingleSequenceEngine::copy(int32_t from, int32_t to, int64_t) {
    check_open(from);
    check_open(to);
    fail(ErrorCode::internal, "engine", "sequence {} cannot be copied to itself", from);
}

void SingleSequenceEngine::share(int32_t sequence, int64_t, int32_t) {
    check_open(sequence);
    fail(ErrorCode::internal, "engine", "there is one loop, nothing to share with");
}

void SingleSequenceEngine::check_row(const Row& row, int64_t position, bool has_token) const {
    check_open(row.sequence);
    const auto refuse = [&](const char* why) {
        fail(ErrorCode::internal, "engine", "token {} of sequence {} cannot run: {}", row.position,
             row.sequence, why);
    };
    if (row.position != position) refuse("tokens run in their order, each once");
    if (row.loop != 0 || row.work != Row::Work::run) refuse("steps run all layers of the engine");
    if (row.logits && !capabilities().logits) refuse("this engine has no logits");
    if (has_token) check_token_id(row.token, config_.n_vocab, "engine");
}

void SingleSequenceEngine::check_encoder_input(const StepInput& input) const {
    if (input.token_types.empty() && input.mask.empty()) return;
    if (capabilities().causal) fail(ErrorCode::internal, "engine", "token types and masks are for encoders");
    const auto check_values = [&](std::span<const int32_t> values, const char* what, int64_t limit) {
        if (values.empty()) return;
        if (values.size() != input.rows.size())
            fail(ErrorCode::input, "engine", "{} {} for {} tokens", values.size(), what, input.rows.size());
        for (const int32_t value : values) {
            if (value < 0 || value >= limit)
                fail(ErrorCode::input, "engine", "{} must be 0 to {}, got {}", what, limit - 1, value);
        }
    };
    check_values(input.token_types, "token types", std::max<int64_t>(1, config_.n_token_types));
    check_values(input.mask, "mask values", 2);
    if (!input.mask.empty() && std::find(input.mask.begin(), input.mask.end(), 1) == input.mask.end())
        fail(ErrorCode::input, "engine", "the mask hides all tokens");
}

ForwardInput SingleSequenceEngine::begin(const StepInput& input) {
    const Capabilities& can = capabilities();
    const auto count = static_cast<int64_t>(input.rows.size());
    if (count > can.max_rows)
        fail(ErrorCode::internal, "engine", "a step has at most {} rows, got {}", can.max_rows, count);
    const bool has_tokens = input.residual.empty();
    if (has_tokens
            ? !can.takes_tokens()
            : !can.range || input.residual.size() != input.rows.size() * static_cast<size_t>(can.n_embd)) {
        fail(ErrorCode::internal, "engine", "{} rows and {} floats of a residual stream do not make a step",
             count, input.residual.size());
    }
    const int64_t past = can.causal ? length_ : 0;
    tokens_.clear();
    asking_.clear();
    for (int64_t i = 0; i < count; ++i) {
        const Row& row = input.rows[static_cast<size_t>(i)];
        check_row(row, past + i, has_tokens);
        tokens_.push_back(row.token);
        if (row.logits) asking_.push_back(static_cast<int32_t>(i));
    }
    check_encoder_input(input);
    if (past + count > can.context) {
        fail(ErrorCode::input, "engine",
             "{} tokens do not fit: {} of {} are used - raise --context or shorten the text", count, past,
             can.context);
    }
    fill_positions(config_, tokens_, past, positions_);
    return {.tokens = has_tokens ? std::span<const int32_t>(tokens_) : std::span<const int32_t>(),
            .positions = positions_,
            .token_types = input.token_types,
            .mask = input.mask,
            .past = past,
            .outputs = asking_.empty() ? 1 : count - asking_.front(),
            .sequence_length = std::max(input.sequence_length, past + count),
            .residual = input.residual};
}

void SingleSequenceEngine::commit(const ForwardInput& input) {
    if (capabilities().causal) length_ += input.count();
}

}  // namespace refold
