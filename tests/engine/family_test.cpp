// Every architecture, read from Hugging Face directories, against what transformers computed; on both engines
// where this build has both.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "engine/compare.h"
#include "io/safetensors.h"
#include "model/load.h"

namespace refold {
namespace {

constexpr double kTolerance = 1e-4;

struct Golden {
    explicit Golden(const std::string& name)
        : folder(std::string(REFOLD_FIXTURES) + "/hf/" + name),
          model(load_model(folder)),
          file(read_safetensors(folder + "/golden.safetensors")) {
        for (int i = 0; i < 6; ++i) {
            if (file.tensors.contains(fmt::format("input_ids.{}", i))) rows.push_back(i);
        }
    }

    template <typename T>
    std::vector<T> values(const std::string& name) const {
        const auto found = file.tensors.find(name);
        if (found == file.tensors.end()) return {};
        std::vector<T> out(found->second.data.size() / sizeof(T));
        memcpy(out.data(), found->second.data.data(), found->second.data.size());
        return out;
    }
    std::vector<int32_t> integers(const char* kind, int row) const {
        const auto wide = values<int64_t>(fmt::format("{}.{}", kind, row));
        return {wide.begin(), wide.end()};
    }
    std::vector<int32_t> ids(int row) const { return integers("input_ids", row); }
    std::vector<float> floats(const char* kind, int row) const {
        return values<float>(fmt::format("{}.{}", kind, row));
    }

    std::string folder;
    Model model;
    SafetensorsFile file;
    std::vector<int> rows;
};

std::vector<std::string> models(bool causal) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(std::string(REFOLD_FIXTURES) + "/hf")) {
        std::ifstream text(entry.path() / "config.json");
        const std::string type = nlohmann::json::parse(text)["model_type"];
        const bool encoder = type == "bert" || type == "roberta" || type == "xlm-roberta" || type == "albert";
        if (encoder != causal) names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
}

std::vector<EngineKind> engines() {
    std::vector<EngineKind> kinds = {EngineKind::ggml};
    if (has_torch_engine()) kinds.push_back(EngineKind::torch);
    return kinds;
}

using Parameters = std::tuple<std::string, EngineKind>;
std::string test_name(const testing::TestParamInfo<Parameters>& info) {
    return std::get<0>(info.param) + (std::get<1>(info.param) == EngineKind::torch ? "_torch" : "_ggml");
}

class GoldenRun : public testing::TestWithParam<Parameters> {
protected:
    const Golden golden{std::get<0>(GetParam())};
    EngineOptions options() const { return {.kind = std::get<1>(GetParam()), .threads = 1, .f32 = true}; }
};

class Decoders : public GoldenRun {};
INSTANTIATE_TEST_SUITE_P(Families, Decoders,
                         testing::Combine(testing::ValuesIn(models(true)), testing::ValuesIn(engines())),
                         test_name);

TEST_P(Decoders, LogitsOfEveryToken) {
    for (const int row : golden.rows) {
        EXPECT_LE(largest_difference(all_logits(golden.model, golden.ids(row), options()),
                                     golden.floats("logits", row)),
                  kTolerance)
            << "row " << row;
    }
}

TEST_P(Decoders, StepsOfAnySizeGiveTheSame) {
    for (const int64_t chunk : {1, 3, 7, 40}) {
        EngineOptions stepwise = options();
        stepwise.chunk = chunk;
        EXPECT_LE(
            largest_difference(all_logits(golden.model, golden.ids(0), stepwise), golden.floats("logits", 0)),
            kTolerance)
            << chunk;
    }
}

TEST_P(Decoders, GreedyContinuation) {
    const auto expected = golden.values<float>("greedy.logits");
    EngineOptions with_room = options();
    with_room.context = 64;
    SingleSequence sequence(golden.model, with_room);
    const auto n_vocab = static_cast<size_t>(sequence.capabilities().n_vocab);
    auto logits = sequence.evaluate(golden.ids(2));
    for (size_t step = 0; step < 16; ++step) {
        const auto wanted = std::span(expected).subspan(step * n_vocab, n_vocab);
        ASSERT_EQ(argmax(logits), argmax(wanted)) << "step " << step;
        EXPECT_LE(largest_difference(logits, wanted), kTolerance) << "step " << step;
        const auto token = static_cast<int32_t>(argmax(logits));
        logits = sequence.evaluate({&token, 1});
    }
}

class Encoders : public GoldenRun {};
INSTANTIATE_TEST_SUITE_P(Families, Encoders,
                         testing::Combine(testing::ValuesIn(models(false)), testing::ValuesIn(engines())),
                         test_name);

TEST_P(Encoders, HiddenStatesLogitsAndPooledOutput) {
    EngineOptions with_room = options();
    with_room.context = 128;
    SingleSequence sequence(golden.model, with_room);
    for (const int row : golden.rows) {
        const auto ids = golden.ids(row), types = golden.integers("token_type_ids", row),
                   mask = golden.integers("attention_mask", row);
        const Encoding encoding = sequence.encode({ids, types, mask});
        const auto compare = [&](std::span<const float> got, const char* kind) {
            const auto expected = golden.floats(kind, row);
            if (!expected.empty()) {
                EXPECT_LE(largest_difference(got, expected), kTolerance) << kind << " of row " << row;
            }
            return !expected.empty();
        };
        const bool logits = compare(encoding.logits, "logits");
        const bool hidden = compare(encoding.last_hidden_state, "last_hidden_state");
        EXPECT_TRUE(logits || hidden);
        compare(encoding.pooled, "pooler_output");
        const auto score = golden.floats("score", row);
        ASSERT_EQ(encoding.score.has_value(), !score.empty());
        if (encoding.score) {
            EXPECT_NEAR(*encoding.score, score.front(), kTolerance) << "score of row " << row;
        }
    }
}

// What is not visible changes nothing.
TEST_P(Encoders, PaddingIsNotSeen) {
    EngineOptions with_room = options();
    with_room.context = 128;
    SingleSequence sequence(golden.model, with_room);
    auto ids = golden.ids(2);
    const size_t length = ids.size();
    const Encoding plain = sequence.encode({ids, {}, {}});
    std::vector<int32_t> mask(length, 1);
    const int32_t padding = golden.model.config.padding_token.value_or(0);
    for (int i = 0; i < 9; ++i) {
        ids.push_back(padding);
        mask.push_back(0);
    }
    const Encoding padded = sequence.encode({ids, {}, mask});
    EXPECT_LE(largest_difference(plain.last_hidden_state,
                                 std::span(padded.last_hidden_state).first(plain.last_hidden_state.size())),
              1e-5);
    mask.assign(ids.size(), 1);
    const Encoding seen = sequence.encode({ids, {}, mask});
    EXPECT_GT(largest_difference(plain.last_hidden_state,
                                 std::span(seen.last_hidden_state).first(plain.last_hidden_state.size())),
              1e-3);
}

}  // namespace
}  // namespace refold
