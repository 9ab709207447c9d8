#include "tasks/task_engine.h"

#include <algorithm>

#include "core/error.h"

namespace refold {
namespace {

// An engine of one sequence as a batch engine that has room for one.
class OneSequence : public BatchEngine {
public:
    OneSequence(const Model& model, const EngineOptions& options) : engine_(model, options) {}

    std::optional<int32_t> open(int64_t) override {
        if (open_) return std::nullopt;
        open_ = true;
        engine_.truncate(0);
        return 0;
    }
    void close(int32_t) override { open_ = false; }
    void truncate(int32_t, int64_t length) override { engine_.truncate(length); }
    void copy(int32_t, int32_t, int64_t) override { refuse(); }
    void share(int32_t, int64_t, int32_t) override { refuse(); }

    std::span<const float> step(std::span<const BatchRow> rows) override {
        const auto width = static_cast<size_t>(n_vocab());
        std::vector<int32_t> tokens;
        size_t from = rows.size();
        logits_.clear();
        for (size_t i = 0; i < rows.size(); ++i) {
            if (rows[i].logits) from = std::min(from, i);
            tokens.push_back(rows[i].token);
        }
        if (tokens.empty()) return {};
        engine_.evaluate_all(
            tokens,
            [&](size_t first, std::span<const float> logits) {
                for (size_t i = 0; i < logits.size() / width; ++i) {
                    if (!rows[first + i].logits) continue;
                    const auto row = logits.subspan(i * width, width);
                    logits_.insert(logits_.end(), row.begin(), row.end());
                }
            },
            std::min(from, rows.size() - 1));
        return logits_;
    }

    int32_t stages() const override { return 1; }
    // A rotation is stretched for what comes in one call.
    int64_t max_rows() const override { return engine_.context(); }
    int64_t context() const override { return engine_.context(); }
    int64_t kv_tokens() const override { return engine_.context(); }
    int64_t kv_tokens_used() const override { return open_ ? engine_.context() : 0; }
    int64_t n_vocab() const override { return engine_.n_vocab(); }
    int threads() const override { return engine_.threads(); }
    EngineMemory memory() const override { return engine_.memory(); }

private:
    [[noreturn]] static void refuse() { fail(ErrorCode::internal, "tasks", "there is one sequence"); }

    Engine engine_;
    bool open_ = false;
    std::vector<float> logits_;
};

// Sequences for steps of hundreds of tokens: 8 of the longest ones, within bounds.
int64_t kv_tokens_for(int64_t context) {
    constexpr int64_t kLeast = 2048, kMost = 16384;
    return std::max(std::clamp(8 * context, kLeast, kMost), 2 * context);
}

}  // namespace

TaskEngine::TaskEngine(const Model& model, const EngineOptions& options) {
    if (options.eviction.active()) {
        fail(ErrorCode::usage, "tasks",
             "a KV cache that evicts rows cannot go back to what prompts have in common - leave out "
             "--kv-policy");
    }
    if (!model.config.causal) {
        encoder_ = std::make_unique<Engine>(model, options);
        return;
    }
    try {
        decoder_ = make_batch_engine(model, {options, kv_tokens_for(options.context), false});
    } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
        decoder_ = std::make_unique<OneSequence>(model, options);
    }
}

}  // namespace refold
