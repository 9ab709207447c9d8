// An engine without a model, for tests of what schedules. Its logits are hashes of the tokens so far and
// of the keys and values that a row attends to, so that a row at the wrong place, a missing key or a mixed-up
// sequence shows in the results. It checks the contract of engine/engine.h strictly.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "engine/engine.h"

namespace refold {

struct FakeEngineOptions {
    int32_t loops = 1;
    int64_t n_vocab = 64;
    int64_t context = 256;
    int64_t kv_tokens = 2048;
    int64_t max_rows = 64;
    // Logits are uniform in +-common for what all loops see alike, plus +-own for what the loop adds.
    float common = 6, own = 2;
    // What every prompt is answered with, whatever it is, and then `script_end`; empty: hashes.
    std::vector<int32_t> script = {};
    int32_t script_end = 0;
    std::chrono::microseconds step_time{0};
    // Before every step; may throw what an engine could.
    std::function<void(std::span<const Row>)> on_step = {};
};

// A breach of the contract throws Error(internal) and fails the test, unless expect_breach() was called.
class FakeEngine : public Engine {
public:
    explicit FakeEngine(FakeEngineOptions options)
        : Engine(capabilities_of(options)), options_(std::move(options)) {}
    ~FakeEngine() override {
        if (breach_expected_) return;
        for (const std::string& breach : breaches_) ADD_FAILURE() << "engine contract: " << breach;
    }
    void expect_breach() { breach_expected_ = true; }
    // Sequences that are open; any thread.
    int64_t open_sequences() const { return open_; }
    int64_t steps() const { return steps_; }

    std::optional<int32_t> open(int64_t tokens) override {
        check_thread();
        if (tokens < 1 || tokens > std::min(options_.context, options_.kv_tokens))
            fail(ErrorCode::usage, "fake", "got room for {} tokens, expected 1 to a context", tokens);
        if (options_.kv_tokens - used_ < tokens) return std::nullopt;
        int64_t begin = gap(tokens);
        if (begin < 0) {
            move_together();
            begin = used_;
        }
        regions_.emplace(begin, begin + tokens);
        const int32_t id = next_++;
        sequences_[id] = {begin, tokens, {}, 0, -2, -1};
        used_ += tokens;
        ++open_;
        return id;
    }

    void close(int32_t sequence) override {
        check_thread();
        const Sequence& s = at(sequence);
        regions_.erase(s.begin);
        used_ -= s.room;
        sequences_.erase(sequence);
        --open_;
    }

    bool resize(int32_t sequence, int64_t tokens) override {
        check_thread();
        Sequence& s = at(sequence);
        require(tokens >= std::max<int64_t>(1, static_cast<int64_t>(s.tokens.size())),
                "room for {} tokens in a sequence of {}", tokens, s.tokens.size());
        const auto next = std::next(regions_.find(s.begin));
        const int64_t end = next == regions_.end() ? options_.kv_tokens : next->first;
        if (tokens > options_.context || s.begin + tokens > end) return false;
        regions_[s.begin] = s.begin + tokens;
        used_ += tokens - s.room;
        s.room = tokens;
        return true;
    }

    void truncate(int32_t sequence, int64_t length) override {
        check_thread();
        auto& tokens = at(sequence).tokens;
        require(length >= 0 && length <= static_cast<int64_t>(tokens.size()), "truncate to {} of {} tokens",
                length, tokens.size());
        at(sequence).answered = 0;
        tokens.resize(static_cast<size_t>(length));
    }

    void copy(int32_t from, int32_t to, int64_t tokens) override {
        check_thread();
        const Sequence& source = at(from);
        Sequence& target = at(to);
        require(target.tokens.empty(), "copy to sequence {}, which is not empty", to);
        require(target.adapter == source.adapter, "copy to sequence {}, which has another adapter", to);
        require(tokens >= 0 && tokens <= std::min(target.room, static_cast<int64_t>(source.tokens.size())),
                "copy of {} tokens", tokens);
        for (int64_t i = 0; i < tokens; ++i) {
            const Token& token = source.tokens[static_cast<size_t>(i)];
            require(complete(token), "copy of token {}, which is not complete", i);
            target.tokens.push_back(token);
        }
    }

    void share(int32_t sequence, int64_t position, int32_t loop) override {
        check_thread();
        Token& token = at(sequence, position);
        require(loop > 0 && loop < options_.loops && depth(token) == loop,
                "share from loop {} of token {}, which has {} loops", loop, position, depth(token));
        token.kv.resize(static_cast<size_t>(options_.loops), token.kv.back());
    }

    // Any number is an adapter; it changes what follows from the tokens.
    void use_adapter(int32_t sequence, int32_t adapter) override {
        check_thread();
        require(at(sequence).tokens.empty(), "an adapter for sequence {}, which is not empty", sequence);
        at(sequence).adapter = adapter;
    }

    StepOutput step(const StepInput& input) override {
        const std::span<const Row> rows = input.rows;
        check_thread();
        if (options_.on_step) options_.on_step(rows);
        if (options_.step_time.count() > 0) std::this_thread::sleep_for(options_.step_time);
        require(!rows.empty() && static_cast<int64_t>(rows.size()) <= options_.max_rows,
                "a step of {} rows, at most {} fit", rows.size(), options_.max_rows);
        ++steps_;
        logits_.clear();
        check_order(rows);
        for (const Row& row : rows) {
            run(row);
            if (row.logits && options_.script.empty()) append_logits(at(row.sequence, row.position));
            if (row.logits && !options_.script.empty()) append_script(at(row.sequence), row.position);
        }
        return {.logits = logits_, .hidden = {}, .pooled = {}};
    }

    int64_t kv_tokens_used() const override { return used_; }
    EngineMemory memory() const override { return {}; }

private:
    static Capabilities capabilities_of(const FakeEngineOptions& options) {
        Capabilities out;
        out.family = "fake";
        out.sequences = out.kv_tokens = options.kv_tokens;
        out.context = options.context;
        out.max_rows = options.max_rows;
        out.n_vocab = options.n_vocab;
        out.loops = options.loops;
        return out;
    }

    // The first gap that is large enough; -1: none is.
    int64_t gap(int64_t tokens) const {
        int64_t begin = 0;
        for (const auto& [first, end] : regions_) {
            if (first - begin >= tokens) return begin;
            begin = end;
        }
        return options_.kv_tokens - begin >= tokens ? begin : -1;
    }
    void move_together() {
        std::map<int64_t, Sequence*> by_begin;
        for (auto& [id, sequence] : sequences_) by_begin[sequence.begin] = &sequence;
        regions_.clear();
        int64_t begin = 0;
        for (const auto& [old, sequence] : by_begin) {
            sequence->begin = begin;
            begin = regions_[begin] = begin + sequence->room;
        }
    }

    struct Token {
        uint64_t common = 0;       // hash of the tokens up to this one
        uint64_t residual = 0;     // what it left the last loop with that it ran
        std::vector<uint64_t> kv;  // of each loop that it has
        bool exited = false;       // has keys only since
        int64_t step = 0;          // latest that it was in
    };
    struct Sequence {
        int64_t begin = 0, room = 0;
        std::vector<Token> tokens;
        size_t answered = 0;  // tokens of the script
        int64_t latest = -2;  // position whose logits were asked for
        int32_t adapter = -1;
    };

    template <typename... Args>
    void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
        if (holds) return;
        breaches_.push_back(fmt::format(format, std::forward<Args>(args)...));
        fail(ErrorCode::internal, "fake", "{}", breaches_.back());
    }

    static uint64_t hash(uint64_t a, uint64_t b) {
        uint64_t x = a * 0x9E3779B97F4A7C15U + b + 0x632BE59BD9B4E019U;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
        return x ^ (x >> 31);
    }
    // In +-1.
    static float uniform(uint64_t x) { return static_cast<float>(x >> 40) / static_cast<float>(1 << 23) - 1; }

    static int32_t depth(const Token& token) { return static_cast<int32_t>(token.kv.size()); }
    bool complete(const Token& token) const { return depth(token) == options_.loops; }

    // All calls that change something come from one thread.
    void check_thread() {
        if (thread_ == std::thread::id()) thread_ = std::this_thread::get_id();
        require(thread_ == std::this_thread::get_id(), "used by two threads");
    }

    Sequence& at(int32_t sequence) {
        const auto found = sequences_.find(sequence);
        require(found != sequences_.end(), "sequence {} is not open", sequence);
        return found->second;
    }
    Token& at(int32_t sequence, int64_t position) {
        auto& tokens = at(sequence).tokens;
        require(position >= 0 && position < static_cast<int64_t>(tokens.size()), "token {} is not there",
                position);
        return tokens[static_cast<size_t>(position)];
    }

    void check_order(std::span<const Row> rows) {
        std::set<std::pair<int32_t, int32_t>> seen;
        for (size_t i = 0; i < rows.size(); ++i) {
            const Row& row = rows[i];
            const bool goes_on =
                i > 0 && rows[i - 1].sequence == row.sequence && rows[i - 1].loop == row.loop;
            if (goes_on) {
                require(row.position > rows[i - 1].position, "token {} behind token {} in a step",
                        row.position, rows[i - 1].position);
            } else {
                require(seen.emplace(row.sequence, row.loop).second,
                        "rows of sequence {} at loop {} are not next to each other", row.sequence, row.loop);
            }
        }
    }

    void run(const Row& row) {
        require(row.loop >= 0 && row.loop < options_.loops, "loop {} of {}", row.loop, options_.loops);
        Sequence& sequence = at(row.sequence);
        const bool keys_only = row.work == Row::Work::keys_only;
        if (row.loop == 0) {
            require(row.position == static_cast<int64_t>(sequence.tokens.size()), "token {} behind {} tokens",
                    row.position, sequence.tokens.size());
            require(row.position < sequence.room, "token {} in room for {}", row.position, sequence.room);
            require(!keys_only, "keys only, of a token that has not run");
            if (row.token < 0 || row.token >= options_.n_vocab)
                fail(ErrorCode::input, "fake", "token id {} of {}", row.token, options_.n_vocab);
            const uint64_t before = sequence.tokens.empty() ? static_cast<uint64_t>(sequence.adapter + 1)
                                                            : sequence.tokens.back().common;
            sequence.tokens.emplace_back();
            Token& token = sequence.tokens.back();
            token.common = hash(before, static_cast<uint64_t>(row.token));
            token.residual = hash(static_cast<uint64_t>(row.token), static_cast<uint64_t>(row.position));
        } else {
            require(row.token == -1, "a token id behind loop 0");
        }
        Token& token = at(row.sequence, row.position);
        require(depth(token) == row.loop, "token {} at loop {}, it has {}", row.position, row.loop,
                depth(token));
        require(token.step < steps_, "token {} twice in a step", row.position);
        require(!token.exited || keys_only, "token {} runs although it has exited", row.position);
        require(!row.logits || !keys_only, "logits of keys only");
        token.step = steps_;
        token.kv.push_back(hash(token.residual, static_cast<uint64_t>(row.loop)));
        if (keys_only) {
            token.exited = true;
            return;
        }
        uint64_t attended = 0;
        for (int64_t i = 0; i <= row.position; ++i) {
            const Token& other = sequence.tokens[static_cast<size_t>(i)];
            require(depth(other) > row.loop, "token {} has no keys at loop {} for token {}", i, row.loop,
                    row.position);
            attended = hash(attended, other.kv[static_cast<size_t>(row.loop)]);
        }
        token.residual = hash(token.residual, attended);
    }

    void append_script(Sequence& sequence, int64_t position) {
        if (position != std::exchange(sequence.latest, position) + 1) sequence.answered = 0;  // a new prompt
        const size_t at = sequence.answered++;
        const int32_t next = at < options_.script.size() ? options_.script[at] : options_.script_end;
        for (int32_t id = 0; id < options_.n_vocab; ++id) logits_.push_back(id == next ? 20.0F : 0.0F);
    }

    void append_logits(const Token& token) {
        for (uint64_t id = 0; id < static_cast<uint64_t>(options_.n_vocab); ++id) {
            logits_.push_back(options_.common * uniform(hash(token.common, id)) +
                              options_.own * uniform(hash(token.residual, id)));
        }
    }

    FakeEngineOptions options_;
    std::map<int32_t, Sequence> sequences_;
    std::map<int64_t, int64_t> regions_;  // first and end
    std::vector<float> logits_;
    std::vector<std::string> breaches_;
    bool breach_expected_ = false;
    std::thread::id thread_;
    std::atomic<int64_t> open_ = 0, used_ = 0;
    int64_t steps_ = 0;
    int32_t next_ = 7;
};

}  // namespace refold
