// Compares sentence embeddings of all-MiniLM-L6-v2 with those of transformers (written by
// scripts/check-transformers), if the model has been fetched.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/process.h"
#include "core/error.h"
#include "io/catalogue.h"
#include "io/safetensors.h"

namespace refold {
namespace {

using nlohmann::json;

constexpr const char* kName = "minilm-l6";

class MiniLm : public testing::Test {
protected:
    void SetUp() override {
        if (!is_pulled(*find_catalogue_entry(kName))) GTEST_SKIP() << "`refold pull " << kName << "` first";
        golden_ = json::parse(read_all(REFOLD_FIXTURES "/minilm/golden.json"));
        ASSERT_EQ(golden_["sentences"].size(), 6U);
        for (const auto& row : golden_["ids"]) longest_ = std::max(longest_, row.size());
    }

    static json refold(std::vector<std::string> words) {
        words.insert(words.begin(), REFOLD_BINARY);
        words.emplace_back("--json");
        const Outcome outcome = Process(std::move(words)).wait();
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return json::parse(outcome.out, nullptr, false);
    }

    // The mean over tokens, normalized to length 1, with `padding` masked tokens appended.
    std::vector<double> embedding(std::vector<int32_t> ids, size_t padding) const {
        const size_t count = ids.size();
        std::vector<int32_t> mask(count, 1);
        ids.resize(count + padding, 0);
        mask.resize(count + padding, 0);
        const std::string path = folder_ / "out.safetensors";
        refold({"logits", kName, "--tokens", fmt::to_string(fmt::join(ids, ",")), "--mask",
                fmt::to_string(fmt::join(mask, ",")), "-o", path, "--overwrite"});
        const SafetensorsFile file = read_safetensors(path);
        const SafetensorsView& view = file.tensors.at("last_hidden_state");
        std::vector<float> values(view.data.size() / sizeof(float));
        memcpy(values.data(), view.data.data(), view.data.size());
        const size_t width = values.size() / ids.size();
        std::vector<double> sum(width);
        for (size_t i = 0; i < count * width; ++i) sum[i % width] += values[i];
        double length = 0;
        for (const double value : sum) length += value * value;
        for (double& value : sum) value /= std::sqrt(length);
        return sum;
    }

    json golden_;
    size_t longest_ = 0;
    TempFolder folder_;
};

TEST_F(MiniLm, TokensAreThoseOfTransformers) {
    for (size_t i = 0; i < golden_["sentences"].size(); ++i) {
        const std::string sentence = golden_["sentences"][i];
        EXPECT_EQ(refold({"tokenize", kName, sentence, "--special"})["ids"], golden_["ids"][i]) << sentence;
    }
}

TEST_F(MiniLm, EmbeddingsAreThoseOfTransformers) {
    for (size_t i = 0; i < golden_["ids"].size(); ++i) {
        const std::vector<int32_t> ids = golden_["ids"][i];
        const std::vector<double> expected = golden_["embeddings"][i];
        for (const size_t padding : {size_t{0}, longest_ - ids.size() + 1}) {
            EXPECT_THAT(embedding(ids, padding), testing::Pointwise(testing::DoubleNear(1e-4), expected))
                << golden_["sentences"][i] << ", padding " << padding;
        }
    }
}

}  // namespace
}  // namespace refold
