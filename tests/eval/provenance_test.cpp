#include "eval/provenance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/environment.h"
#include "core/temp_folder.h"
#include "model/load.h"

namespace refold {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

const std::string kModel = std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf";
constexpr const char* kHash = "278199560a745f4594008b7229edc8a051f34e3340a1aec53ca061d1dd35c1b7";

Model with_provenance(const std::string& json) {
    Model model = load_model(kModel);
    model.metadata.set("refold.provenance", GgufValue::string(json));
    return model;
}

TEST(Provenance, SaysWhatWasRun) {
    const Model model = with_provenance("{\"recipe\": \"steps: []\"}");
    EngineOptions options;
    options.f32 = true;
    const Json j = to_json(Provenance{"tiny", kModel, &model, options, 2, {data_file("t.txt", "abc")}});
    EXPECT_EQ(j["model"]["name"], "tiny");
    EXPECT_EQ(j["model"]["sha256"], kHash);
    EXPECT_EQ(j["model"]["files"][0]["file"], "model.gguf");
    EXPECT_EQ(j["model"]["compression"]["recipe"], "steps: []");
    EXPECT_GT(j["model"]["bytes_by_type"]["F32"], 100000);
    EXPECT_EQ(j["data"]["sha256"], "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(j["data"]["bytes"], 3);
    EXPECT_EQ(j["engine"]["kv"], "f32");
    EXPECT_EQ(j["engine"]["precision"], "stored");
    options.f32 = false;
    options.precision = Precision::bf16;
    EXPECT_EQ(to_json(Provenance{"tiny", kModel, &model, options, 2})["engine"]["precision"], "bf16");
    EXPECT_EQ(j["threads"], 2);
    EXPECT_THAT(j["command"].get<std::string>(), HasSubstr("refold_test_eval"));
    EXPECT_THAT(j["date"].get<std::string>(), testing::MatchesRegex("20..-..-..T..:..:..Z"));
    for (const char* key : {"refold", "llama_cpp", "ggml", "cpu"}) EXPECT_NE(j[key], "") << key;
}

TEST(Provenance, OfAFolderHasItsFilesAndConfiguration) {
    const std::string folder = std::string(REFOLD_FIXTURES) + "/hf/llama_bf16_sharded";
    const Model model = load_model(folder);
    const Json j = to_json(Provenance{"x", folder, &model, {}, 1});
    EXPECT_EQ(j["model"]["files"].size(), 4u);
    EXPECT_EQ(j["model"]["files"][0]["file"], "config.json");
    EXPECT_EQ(j["model"]["sha256"].get<std::string>().size(), 64u);
    EXPECT_TRUE(j["data"].is_null());
}

TEST(Provenance, KnowsTheCalibrationText) {
    const std::string calibration =
        "\"calibration\": {\"texts\": [{\"text\": \"b.txt\"}, {\"text\": \"c.txt\", \"sha256\": \"abc\"}]}";
    EXPECT_EQ(calibrated_on(with_provenance("{" + calibration + "}"), "abc"), "c.txt");
    EXPECT_EQ(calibrated_on(with_provenance("{" + calibration + "}"), "abd"), std::nullopt);
    // A model made from a calibrated model.
    EXPECT_EQ(calibrated_on(with_provenance("{\"source\": {\"provenance\": {" + calibration + "}}}"), "abc"),
              "c.txt");
    EXPECT_THAT(*calibration_warning(with_provenance("{" + calibration + "}"), {"t.txt", "abc", 3}),
                HasSubstr("calibrated on this very text ('c.txt')"));
    // A file may have anything there.
    for (const std::string& json :
         {std::string("x"), std::string("[]"), std::string("{\"calibration\": 3}"),
          std::string("{\"source\": [], \"calibration\": {\"texts\": [3, {\"sha256\": {}}]}}"),
          std::string(100000, '['), "{\"source\": " + std::string(100, '[') + std::string(100, ']') + "}"})
        EXPECT_EQ(calibrated_on(with_provenance(json), "abc"), std::nullopt) << json.substr(0, 60);
    EXPECT_EQ(calibrated_on(load_model(kModel), "abc"), std::nullopt);
    const std::string deep = std::string(101, '[') + std::string(101, ']');
    const Model model = with_provenance(deep);
    EXPECT_EQ(to_json(Provenance{"x", kModel, &model, {}, 1})["model"]["compression"], deep);
}

}  // namespace
}  // namespace refold
