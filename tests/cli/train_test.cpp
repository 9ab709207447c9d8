// refold train.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/refold.h"
#include "core/error.h"
#include "io/gguf.h"

namespace refold {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

namespace fs = std::filesystem;

const std::string kModel = std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf";

#ifdef REFOLD_HAVE_TORCH

class Train : public testing::Test {
protected:
    void SetUp() override {
        std::string text;
        for (int i = 0; i < 400; ++i) text += "the cat sat on the mat and the dog lay by the door. ";
        write_all(text_, text);
    }

    std::vector<std::string> command(const std::string& output, std::vector<std::string> settings) const {
        std::vector<std::string> words = {"train", kModel, "-o", output, "--data", text_, "--threads", "1"};
        settings.insert(settings.end(), {"context=16", "batch=2", "learning_rate=1e-3"});
        for (const auto& setting : settings) words.insert(words.end(), {"--set", setting});
        return words;
    }

    TempFolder folder_;
    std::string text_ = folder_ / "text.txt";
};

TEST_F(Train, WritesAModelItsRecipeAndItsMetrics) {
    const std::string out = folder_ / "out.gguf";
    const auto result = refold_json(command(out, {"steps=30", "train=all,-token_embd.weight"}));
    const auto details = result["steps"][0]["details"];
    EXPECT_EQ(details["steps"], 30);
    EXPECT_LT(details["held_out_after"], details["held_out_before"].get<double>() - 0.3);
    EXPECT_EQ(result["before"], result["after"]);
    EXPECT_THAT(read_all(folder_ / "out.recipe.yaml"), HasSubstr("objective: uptrain"));
    const std::string metrics = read_all(folder_ / "out.train/step-1/metrics.jsonl");
    EXPECT_THAT(metrics, AllOf(HasSubstr("held_out_loss"), HasSubstr("learning_rate")));
    EXPECT_FALSE(fs::exists(out + ".work"));

    const auto before = GgufFile::open(kModel), after = GgufFile::open(out);
    for (const GgufTensor& tensor : before->tensors()) {
        for (const GgufTensor& other : after->tensors()) {
            if (other.name != tensor.name) continue;
            const bool same = std::ranges::equal(other.data, tensor.data);
            const bool frozen = tensor.name == "token_embd.weight" || tensor.name == "rope_freqs.weight";
            EXPECT_EQ(same, frozen) << tensor.name;
        }
    }
}

TEST_F(Train, AfterSigtermTheSameCommandGoesOn) {
    const std::string whole = folder_ / "whole/out.gguf", parts = folder_ / "parts/out.gguf";
    fs::create_directories(folder_ / "whole");
    fs::create_directories(folder_ / "parts");
    const std::vector<std::string> settings = {"steps=60", "evaluate_every=20", "keep=12"};
    ASSERT_EQ(refold(command(whole, settings)).code, 0);

    auto words = command(parts, settings);
    words.insert(words.begin(), REFOLD_BINARY);
    Process process(words);
    const std::string metrics = folder_ / "parts/out.train/step-1/metrics.jsonl";
    for (int i = 0; i < 3000; ++i) {
        std::error_code none;
        if (fs::exists(metrics, none) && fs::file_size(metrics, none) > 1000) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    process.send(SIGTERM);
    const Outcome stopped = process.wait();
    EXPECT_EQ(stopped.code, 130) << stopped.err;
    EXPECT_THAT(stopped.err, AllOf(HasSubstr("interrupted after"), HasSubstr("run the same again")));
    EXPECT_FALSE(fs::exists(parts));

    const Outcome resumed = refold(command(parts, settings));
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(read_all(parts), read_all(whole));
    for (int number = 1; number <= 12; ++number) {
        const std::string kept = fmt::format("/out.train/step-1/kept-{:02}-of-12.gguf", number);
        EXPECT_TRUE(read_all(folder_ / "parts" + kept) == read_all(folder_ / "whole" + kept)) << number;
    }
}

// Models of the run as any other model: the last one has the weights of the result.
TEST_F(Train, KeepsModelsOfTheRun) {
    const std::string out = folder_ / "out.gguf";
    const auto details = refold_json(command(out, {"steps=5", "keep=2"}))["steps"][0]["details"];
    const std::string first = folder_ / "out.train/step-1/kept-1-of-2.gguf",
                      last = folder_ / "out.train/step-1/kept-2-of-2.gguf";
    EXPECT_EQ(details["kept"],
              (nlohmann::json{{{"step", 2}, {"file", first}}, {{"step", 5}, {"file", last}}}));
    const auto tensors = [](const std::string& path) {
        std::map<std::string, std::vector<std::byte>> all;
        const auto file = GgufFile::open(path);
        for (const GgufTensor& tensor : file->tensors())
            all[tensor.name] = {tensor.data.begin(), tensor.data.end()};
        return all;
    };
    EXPECT_TRUE(tensors(last) == tensors(out));
    EXPECT_FALSE(tensors(first) == tensors(out));
    EXPECT_FALSE(tensors(first) == tensors(kModel));
    const auto provenance = refold_json({"inspect", first})["provenance"];
    EXPECT_EQ(provenance["training_step"], 2);
    EXPECT_THAT(provenance["recipe"].get<std::string>(), HasSubstr("method: train"));
    expect_error(refold(command(folder_ / "more.gguf", {"steps=5", "keep=6"})), 2,
                 {"keep: got 6", "5 steps"});
    expect_error(refold({"train", kModel, "-o", folder_ / "more.gguf", "--calib", text_, "--set",
                         "objective=layerwise", "--set", "keep=1"}),
                 2, {"keep", "objective=layerwise"});
}

// A resumed run reuses finished layers and gives the same bits.
TEST_F(Train, LayerByLayerGoesOnAfterSigterm) {
    const std::string recipe = folder_ / "recipe.yaml";
    write_all(recipe, "calibration: {text: " + text_ + ", tokens: 512, length: 32}" + R"(
steps:
  - method: direct_share
    ratio: 0.3
  - method: train
    objective: layerwise
    steps: 60
    batch: 2
)");
    const auto words = [&](const std::string& out) {
        return std::vector<std::string>{"compress", kModel, "-o", out, "--recipe", recipe, "-t", "1"};
    };
    const std::string whole = folder_ / "whole.gguf", parts = folder_ / "parts.gguf";
    const Outcome expected = refold(words(whole));
    ASSERT_EQ(expected.code, 0) << expected.err;

    auto command = words(parts);
    command.insert(command.begin(), REFOLD_BINARY);
    Process process(command);
    const auto done = [&] {
        size_t layers = 0;
        std::error_code none;
        for (fs::directory_iterator entry(parts + ".work", none), end; !none && entry != end;
             entry.increment(none))
            layers += entry->path().extension() == ".safetensors" ? 1 : 0;
        return layers;
    };
    for (int i = 0; i < 3000 && done() == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    process.send(SIGTERM);
    const Outcome stopped = process.wait();
    EXPECT_EQ(stopped.code, 130) << stopped.err;
    EXPECT_FALSE(fs::exists(parts));
    EXPECT_GT(done(), 0U);
    EXPECT_LT(done(), 4U);

    const Outcome resumed = refold(words(parts));
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(read_all(parts), read_all(whole));
}

TEST_F(Train, ACheckpointOfAnotherRunIsRefused) {
    const std::string out = folder_ / "out.gguf";
    auto words = command(out, {"steps=100000"});
    words.insert(words.begin(), REFOLD_BINARY);
    Process process(words);
    const std::string metrics = folder_ / "out.train/step-1/metrics.jsonl";
    for (int i = 0; i < 3000 && !fs::exists(metrics); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    process.send(SIGTERM);
    ASSERT_EQ(process.wait().code, 130);
    expect_error(refold(command(out, {"steps=100"})), 1,
                 {"another run: steps (then 100000, now 100)", "(step 1: train)"});
}

TEST_F(Train, RecipesWithSeveralSteps) {
    const std::string out = folder_ / "out.gguf", recipe = folder_ / "recipe.yaml";
    write_all(recipe, R"(
steps:
  - method: train
    objective: postshare
    ratio: 0.34
    steps: 5
    batch: 2
    context: 16
  - method: direct_share
    ratio: 0.34
    matching: original
)");
    const auto result = refold_json({"train", kModel, "-o", out, "--recipe", recipe, "--data", text_});
    const auto pairs = result["steps"][0]["details"]["pairs"];
    EXPECT_GT(pairs, 0);
    EXPECT_EQ(result["steps"][1]["details"]["selected"], pairs);
    EXPECT_LT(result["after"]["bytes"], result["before"]["bytes"]);
    // The recipe beside the output names the text.
    EXPECT_THAT(read_all(folder_ / "out.recipe.yaml"), HasSubstr(text_));
}

TEST_F(Train, DistillsFromTheModelBeforeTheFirstStep) {
    const std::string out = folder_ / "out.gguf", recipe = folder_ / "recipe.yaml";
    write_all(recipe, R"(
steps:
  - method: recursive
    loops: 2
  - method: train
    objective: distill
    alpha: 1
    learning_rate: 1e-3
    steps: 20
    batch: 2
    context: 16
    teacher_cache: 16
)");
    const auto result = refold_json({"train", kModel, "-o", out, "-r", recipe, "-d", text_});
    const auto details = result["steps"][1]["details"];
    EXPECT_LT(details["held_out_after"], details["held_out_before"].get<double>());
    EXPECT_EQ(result["steps"][0]["after"], result["steps"][1]["after"]);
    // The same with the other engine.
    write_all(recipe, read_all(recipe) + "    teacher_engine: ggml\n");
    const std::string other = folder_ / "other.gguf";
    const auto by_ggml =
        refold_json({"train", kModel, "-o", other, "-r", recipe, "-d", text_})["steps"][1]["details"];
    for (const char* figure : {"held_out_before", "held_out_after"})
        EXPECT_NEAR(by_ggml[figure].get<double>(), details[figure].get<double>(), 0.01) << figure;
    EXPECT_NE(by_ggml["held_out_before"], details["held_out_before"]);
}

TEST_F(Train, ADryRunSaysTheCost) {
    auto words = command("", {"steps=10"});
    words.erase(words.begin() + 2, words.begin() + 4);
    words.emplace_back("--dry-run");
    const auto result = refold_json(words);
    EXPECT_EQ(result["before"], result["after"]);
    EXPECT_GT(result["steps"][0]["details"]["trained_parameters"], 0);
    EXPECT_EQ(folder_.files(), (std::vector<std::string>{"text.txt"}));
}

TEST_F(Train, BadInputIsNamed) {
    const std::string out = folder_ / "out.gguf", lines = folder_ / "bad.jsonl",
                      little = folder_ / "little.txt";
    const auto with = [&](std::vector<std::string> settings) {
        return refold(command(out, std::move(settings)));
    };
    expect_error(refold({"train", kModel, "-o", out}), 2, {"data", "text to train on"});
    expect_error(refold({"train", kModel, "-o", out, "-d", folder_ / "none.txt"}), 1, {"none.txt"});
    write_all(lines, "{\"text\": \"one\"}\n{\"text\": \n");
    expect_error(refold({"train", kModel, "-o", out, "-d", lines}), 1, {"bad.jsonl", "line 2"});
    write_all(little, "one two");
    expect_error(refold({"train", kModel, "-o", out, "-d", little}), 1, {"little.txt"});
    expect_error(with({"train=blk.0.attn_w.weight"}), 2, {"matches no tensor", "blk.0.attn_"});
    expect_error(with({"train=lora"}), 2, {"no such tensors"});
    expect_error(with({"objective=distill"}), 2, {"its own teacher", "teacher=FILE"});
    expect_error(with({"objective=early_exit", "steps=1"}), 2, {"no loops", "exits="});
    expect_error(with({"objective=uptrian"}), 2, {"did you mean 'uptrain'"});
    expect_error(refold({"train", kModel, "-o", out, "-d", text_, "--set", "learning_rate=fast"}), 2,
                 {"learning_rate", "fast"});
    expect_error(with({"steps=-1"}), 2, {"steps", "-1"});
    // Before the text is tokenized, which can take hours.
    const std::string other = folder_ / "other.gguf";
    expect_error(refold(command(other, {"device=tpu"})), 2, {"device", "'tpu'"});
    EXPECT_FALSE(fs::exists(other + ".work/train/step-1/tokens.bin"));
    expect_error(refold(command(out, {"steps=1"}), "", {"WORLD_SIZE=2", "RANK=0"}), 2, {"MASTER_ADDR"});
    expect_error(refold({"compress", kModel, "-o", out, "-m", "direct_share", "-d", text_}), 2,
                 {"--data", "no step of this recipe trains"});
    EXPECT_FALSE(fs::exists(out));
}

#else

TEST(Train, NeedsTheTorchEngine) {
    const TempFolder folder;
    std::string text;
    for (int i = 0; i < 1000; ++i) text += "one two three four. ";
    write_all(folder / "text.txt", text);
    expect_error(refold({"train", kModel, "-o", folder / "out.gguf", "-d", folder / "text.txt"}), 1,
                 {"no torch engine", "libtorch"});
    EXPECT_FALSE(fs::exists(folder / "out.gguf.work"));  // before any work
}

#endif

}  // namespace
}  // namespace refold
