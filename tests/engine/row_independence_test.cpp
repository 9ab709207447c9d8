// The logits of a token are the same bits whatever shares its steps, however its text is cut into steps, and
// whatever the number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/compare.h"
#include "engine/expression_models.h"
#include "engine/looped_models.h"
#include "engine/synthetic_models.h"
#include "io/dtype.h"
#include "model/load.h"

namespace refold {
namespace {

struct Setting {
    int64_t context = 48, texts = 16;
    int threads = 1;
    KvType kv = KvType::f16;
    bool by_loop = false;
    size_t most = 1000;  // tokens of a text in a step
    std::vector<size_t> pieces = {2, 3, 5, 17, 1000};
};

// Texts of many lengths, and what an engine says of every token when it runs by itself.
class Comparison {
public:
    Comparison(const Model& model, const Setting& setting)
        : setting_(setting), width_(static_cast<size_t>(model.config.n_vocab)) {
        EngineOptions options{.threads = 1,
                              .context = setting.context,
                              .chunk = setting.context * setting.texts,
                              .kv = setting.kv,
                              .sequences = 0,
                              .kv_tokens = (setting.texts + 1) * setting.context,
                              .by_loop = setting.by_loop};
        if (model.config.n_learned_positions > 0)
            options.context = std::min(options.context, model.config.n_learned_positions);
        const auto context = static_cast<size_t>(options.context);
        for (int64_t i = 0; i < setting.texts; ++i) {
            const size_t length = i == 0 ? context : 1 + (static_cast<size_t>(i) * 29) % context;
            texts_.push_back(random_tokens(length, model.config.n_vocab, static_cast<uint32_t>(i) + 1));
        }
        engine_ = make_engine(model, options);
        for (const auto& text : texts_) alone_.push_back(in_pieces(text, 1));
        options.threads = setting.threads;
        engine_ = make_engine(model, options);
    }

    void compare_pieces(size_t piece) {
        for (size_t i = 0; i < std::min<size_t>(texts_.size(), 3); ++i)
            compare(i, 0, in_pieces(texts_[i], piece));
        expect_none(std::to_string(piece) + " tokens at a time");
    }

    // The first `count` texts, which are at different places and run token by token, but for the last one,
    // whose tokens come by threes.
    void compare_together(size_t count) {
        ids_.clear();
        done_.assign(count, 0);
        for (size_t i = 0; i < count; ++i)
            ids_.push_back(engine_->open(static_cast<int64_t>(texts_[i].size())).value());
        for (bool ahead = true; ahead;) {
            Parts parts;
            for (size_t i = 0; i < count; ++i) {
                const size_t first = texts_[i].size() * i / (count + 1);
                if (done_[i] < first) parts.emplace_back(i, std::min(setting_.most, first - done_[i]));
            }
            ahead = !parts.empty();
            step(parts);
        }
        for (bool left = true; left;) {
            Parts parts;
            for (size_t i = 0; i < count; ++i) {
                if (done_[i] < texts_[i].size())
                    parts.emplace_back(i,
                                       std::min<size_t>(texts_[i].size() - done_[i], i + 1 == count ? 3 : 1));
            }
            left = !parts.empty();
            step(parts);
        }
        for (const int32_t id : ids_) engine_->close(id);
        expect_none(std::to_string(count) + " texts together");
    }

private:
    using Parts = std::vector<std::pair<size_t, size_t>>;  // text, tokens

    void step(const Parts& parts) {
        std::vector<Row> rows;
        for (const auto& [text, tokens] : parts) {
            for (size_t i = 0; i < tokens; ++i)
                rows.push_back(row(ids_[text], done_[text] + i, texts_[text]));
        }
        const auto logits = run(rows);
        auto at = logits.begin();
        for (const auto& [text, tokens] : parts) {
            const auto end = at + static_cast<ptrdiff_t>(tokens * width_);
            compare(text, done_[text], {at, end});
            at = end;
            done_[text] += tokens;
        }
    }

    static Row row(int32_t sequence, size_t position, const std::vector<int32_t>& text) {
        return {.sequence = sequence, .position = static_cast<int64_t>(position), .token = text[position]};
    }

    // Logits of all rows, after all loops.
    std::vector<float> run(std::vector<Row> rows) {
        const int32_t loops = engine_->capabilities().loops;
        std::vector<float> logits;
        for (int32_t loop = 0; loop < loops; ++loop) {
            for (Row& row : rows) {
                row.loop = loop;
                row.logits = loop + 1 == loops;
            }
            const auto output = engine_->step({.rows = rows});
            logits.assign(output.logits.begin(), output.logits.end());
        }
        return logits;
    }

    std::vector<float> in_pieces(const std::vector<int32_t>& text, size_t piece) {
        std::vector<float> out;
        const int32_t id = engine_->open(static_cast<int64_t>(text.size())).value();
        for (size_t first = 0; first < text.size(); first += piece) {
            std::vector<Row> rows;
            for (size_t i = first; i < std::min(text.size(), first + piece); ++i)
                rows.push_back(row(id, i, text));
            const auto logits = run(std::move(rows));
            out.insert(out.end(), logits.begin(), logits.end());
        }
        engine_->close(id);
        return out;
    }

    void compare(size_t text, size_t first, const std::vector<float>& logits) {
        for (size_t t = 0; t < logits.size() / width_; ++t, ++compared_) {
            const std::span got(logits.data() + t * width_, width_);
            const std::span expected(alone_[text].data() + (first + t) * width_, width_);
            if (std::equal(got.begin(), got.end(), expected.begin())) continue;
            ++different_;
            largest_ = std::max(largest_, scaled_difference(got, expected));
        }
    }

    void expect_none(const std::string& what) {
        EXPECT_GT(compared_, 0U) << what;
        EXPECT_EQ(different_, 0U) << what << ": of " << compared_ << " tokens, by up to " << largest_;
        different_ = compared_ = 0;
        largest_ = 0;
    }

    Setting setting_;
    size_t width_;
    std::unique_ptr<Engine> engine_;
    std::vector<std::vector<int32_t>> texts_;
    std::vector<std::vector<float>> alone_;  // [tokens, n_vocab]
    std::vector<int32_t> ids_;               // of the texts that run together
    std::vector<size_t> done_;               // tokens of each
    size_t compared_ = 0, different_ = 0;
    double largest_ = 0;
};

void expect_independent(const std::string& name, const Model& model, const Setting& setting = {}) {
    SCOPED_TRACE(name);
    Comparison comparison(model, setting);
    for (const size_t piece : setting.pieces) comparison.compare_pieces(piece);
    for (const size_t count : {2U, 4U, 8U, 16U})
        if (count <= static_cast<size_t>(setting.texts)) comparison.compare_together(count);
}

TEST(RowIndependence, EveryArchitecture) {
    for (auto& [name, model, input] : synthetic_models()) {
        if (!model.config.causal || model.config.rope.stretches(48)) continue;
        expect_independent(name, model);
        expect_independent(name + ", shared", share(model));
    }
}

// Of a few architectures: how work is divided does not depend on them.
TEST(RowIndependence, Threads) {
    size_t number = 0;
    for (auto& [name, model, input] : synthetic_models()) {
        if (number++ % 5 != 0 || !model.config.causal || model.config.rope.stretches(12)) continue;
        expect_independent(name, share(model), {.context = 12, .texts = 2, .threads = 2, .pieces = {7}});
    }
}

class RowIndependenceOfTypes : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, RowIndependenceOfTypes,
                         testing::Values(DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0,
                                         DType::Q4_1),
                         [](const auto& type) { return name(type.param); });

// Shared heads, factors, LoRA, prefixes, attention of other layers.
TEST_P(RowIndependenceOfTypes, EveryExpression) {
    uint32_t seed = 0;
    for (const auto& [name, build] : expressions::cases()) {
        ++seed;
        ExpressionBuilder b(kExpressionFamilies[seed % kExpressionFamilies.size()], seed,
                            {.heads = 4, .kv_heads = 2, .head_dim = 32, .embd = 64, .ff = 96});
        if (!has_groups(b.model.config.family) && name.find("groups") != std::string::npos) continue;
        build(b);
        expect_independent(name + " of " + b.model.config.family, with_type(b.finish(), GetParam()),
                           {.context = 30, .texts = 8});
    }
}

TEST_P(RowIndependenceOfTypes, Loops) {
    const Model model = with_type(looped_model("llama", {.rank = 16, .sizes = {.head_dim = 32}}), GetParam());
    expect_independent("all loops at once", model, {.context = 30});
    expect_independent("loop by loop", model, {.context = 30, .by_loop = true});
}

// Heads that are no whole panels of rows or groups of columns.
TEST(RowIndependence, OddSizes) {
    for (const DType type : {DType::F32, DType::F16, DType::BF16}) {
        ExpressionBuilder b("llama", 3, {.heads = 4, .kv_heads = 2, .head_dim = 24, .embd = 52, .ff = 70});
        for (size_t p = 1; p < b.n_layer(); ++p)
            for (const Slot slot : ExpressionBuilder::kAttention) b.at(p, slot) = b.heads(p, slot);
        expect_independent(name(type), with_type(b.finish(), type), {.context = 30});
    }
}

TEST(RowIndependence, KQuants) {
    for (const DType type : {DType::Q2_K, DType::Q4_K, DType::Q6_K, DType::IQ4_XS}) {
        ExpressionBuilder b("llama", 4,
                            {.layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 64, .embd = 256, .ff = 256});
        for (const Slot slot : ExpressionBuilder::kAttention) b.at(1, slot) = b.heads(1, slot);
        expect_independent(name(type), with_type(b.finish(), type), {.context = 30, .texts = 8});
    }
}

// Contexts of several chunks of cached rows, for one thread and for several.
TEST(RowIndependence, LongContexts) {
    for (const KvType kv : {KvType::f16, KvType::f32, KvType::q4_0}) {
        ExpressionBuilder b("llama", 6, {.layers = 2, .heads = 6, .kv_heads = 2, .head_dim = 32});
        b.model.config.context_length = 600;
        b.share_probabilities(1, 0);
        Model sharing = b.finish();
        expect_independent(std::string("shared probabilities, ") + kv_type_name(kv), sharing,
                           {.context = 600, .texts = 2, .threads = 2, .kv = kv, .pieces = {5, 300}});
        ExpressionBuilder own("llama", 7, {.layers = 2, .heads = 10, .kv_heads = 2, .head_dim = 32});
        own.model.config.context_length = 600;
        Model model = own.finish();
        expect_independent(std::string("own attention, ") + kv_type_name(kv), model,
                           {.context = 600, .texts = 2, .threads = 2, .kv = kv, .pieces = {7, 600}});
    }
}

// Products of 16 and 8 bits for few tokens: those of up to 16 tokens in a step agree.
TEST(RowIndependence, FewTokensOnAQuantizedCache) {
    ExpressionBuilder b("llama", 8, {.layers = 2, .heads = 6, .kv_heads = 2, .head_dim = 64});
    b.model.config.context_length = 700;
    expect_independent("q8_0", b.finish(),
                       {.context = 700, .texts = 4, .kv = KvType::q8_0, .most = 16, .pieces = {2, 5, 16}});
}

}  // namespace
}  // namespace refold
