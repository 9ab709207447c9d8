// Verbs run by several processes, as torchrun starts them.
#ifdef REFOLD_HAVE_TORCH
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>

#include "cli/refold.h"
#include "eval/excerpt.h"
#include "io/gguf.h"
#include "train/free_port.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kFixtures = REFOLD_FIXTURES;
const std::string kModel = kFixtures + "/llama_gqa/model.gguf";

class ManyProcesses : public testing::Test {
protected:
    // Runs the same command as `count` processes.
    std::vector<Outcome> outcomes(int count, std::vector<std::string> words) const {
        words.insert(words.begin(), REFOLD_BINARY);
        const uint16_t port = free_port();
        std::vector<std::unique_ptr<Process>> processes;
        for (int rank = 0; rank < count; ++rank) {
            processes.push_back(std::make_unique<Process>(
                words, "",
                std::vector<std::string>{fmt::format("RANK={}", rank), fmt::format("WORLD_SIZE={}", count),
                                         "MASTER_ADDR=127.0.0.1", fmt::format("MASTER_PORT={}", port),
                                         fmt::format("REFOLD_CACHE={}/{}", folder / "cache", rank)}));
        }
        std::vector<Outcome> all;
        for (const auto& process : processes) all.push_back(process->wait());
        return all;
    }
    // Output of the first process; the others print nothing.
    json result(int count, std::vector<std::string> words) const {
        words.emplace_back("--json");
        const auto all = outcomes(count, std::move(words));
        for (const Outcome& outcome : all) EXPECT_EQ(outcome.code, 0) << outcome.err;
        for (size_t rank = 1; rank < all.size(); ++rank) {
            EXPECT_THAT(all[rank].out, IsEmpty());
            EXPECT_THAT(all[rank].err, IsEmpty());
        }
        json parsed = json::parse(all[0].out, nullptr, false);
        EXPECT_FALSE(parsed.is_discarded()) << all[0].out << all[0].err;
        return parsed;
    }

    TempFolder folder;
};

json without(json j, std::initializer_list<const char*> keys) {
    for (const char* key : keys) j.erase(key);
    return j;
}

TEST_F(ManyProcesses, OneSaysWhatIsWrongWithTheArguments) {
    const auto all = outcomes(2, {"eval", "ppl", kModel, "--txt", "a"});
    for (const Outcome& outcome : all) EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(all[0].err, testing::HasSubstr("did you mean '--text'"));
    EXPECT_THAT(all[1].err, IsEmpty());
}

TEST_F(ManyProcesses, Perplexity) {
    write_all(folder / "text", excerpt(12));
    for (const std::string protocol : {"windows", "lm-eval"}) {
        const auto measured = [&](int count) {
            const std::string samples = folder / fmt::format("samples{}.{}", count, protocol);
            json j = result(count, {"eval", "ppl", kModel, "--text", folder / "text", "--context", "32", "-t",
                                    "1", "--protocol", protocol, "--samples", samples});
            EXPECT_GT(j["windows"], 3);
            j["samples"] = read_all(samples);
            return without(j, {"seconds", "tokens_per_s", "provenance"});
        };
        const json one = measured(1);
        EXPECT_EQ(measured(3), one);
    }
}

TEST_F(ManyProcesses, Comparison) {
    const std::string other = folder / "other.gguf";
    ASSERT_EQ(refold({"quantize", kModel, "-o", other, "--type", "q8_0", "-q"}).code, 0);
    write_all(folder / "text", excerpt(12));
    for (const std::string protocol : {"windows", "lm-eval"}) {
        const auto measured = [&](int count) {
            json j = result(count, {"compare", kModel, other, "--text", folder / "text", "--context", "32",
                                    "-t", "1", "--protocol", protocol});
            EXPECT_GT(j["a"]["windows"], 3);
            for (const char* side : {"a", "b"}) j[side].erase("provenance");
            return j;
        };
        const json one = measured(1);
        EXPECT_GT(one["logits"]["kl_divergence"], 0);
        EXPECT_EQ(measured(3), one);
    }
}

TEST_F(ManyProcesses, ImportanceMatrix) {
    const auto measured = [&](int count) {
        const std::string out = folder / fmt::format("{}.gguf", count);
        result(count, {"imatrix", kModel, "--calib", kFixtures + "/README.md", "--calib-tokens", "112",
                       "--sequence-length", "16", "-t", "1", "-o", out});
        std::map<std::string, std::vector<float>> values;
        const auto file = GgufFile::open(out);
        for (const GgufTensor& tensor : file->tensors()) {
            auto& of_tensor = values[tensor.name];
            of_tensor.resize(tensor.data.size() / sizeof(float));
            std::memcpy(of_tensor.data(), tensor.data.data(), tensor.data.size());
        }
        return values;
    };
    const auto one = measured(1), three = measured(3);
    ASSERT_GT(one.size(), 10);
    ASSERT_EQ(three.size(), one.size());
    for (const auto& [name, values] : one)
        for (size_t i = 0; i < values.size(); ++i)
            EXPECT_NEAR(three.at(name)[i], values[i], 1e-5 * std::abs(values[i])) << name;
}

TEST_F(ManyProcesses, Tasks) {
    const std::string model = folder / "model";
    fs::create_directory(model);
    for (const char* part : {"hf/llama_gqa", "tokenizers/bpe_llama3"})
        for (const auto& entry : fs::directory_iterator(fs::path(kFixtures) / part))
            fs::copy_file(entry.path(), fs::path(model) / entry.path().filename(),
                          fs::copy_options::skip_existing);
    const auto measured = [&](int count) {
        const std::string samples = folder / fmt::format("samples{}", count),
                          out = folder / fmt::format("out{}", count);
        result(count, {"eval", "tasks", model, "--tasks", "piqa,hotpotqa", "--data", kFixtures + "/tasks",
                       "--f32", "-t", "1", "--limit", "5", "--samples", samples, "-o", out});
        EXPECT_FALSE(fs::exists(out + ".work"));
        EXPECT_FALSE(fs::exists(out + ".work.1"));
        json j = json::parse(read_all(out));
        j["samples"] = read_all(samples);
        return without(j, {"total_evaluation_time_seconds", "date", "provenance"});
    };
    EXPECT_EQ(measured(2), measured(1));
}

TEST_F(ManyProcesses, Exits) {
    const std::string model = folder / "looped.gguf", text = folder / "text";
    ASSERT_EQ(
        refold({"compress", kModel, "-o", model, "--method", "recursive", "--set", "loops=2", "-q"}).code, 0);
    write_all(text, excerpt(12));
    for (const std::string kv : {"catch-up", "propagate"}) {
        const auto measured = [&](int count) {
            json j = result(count, {"eval", "ppl", model, "--text", text, "--context", "32", "-t", "1",
                                    "--exit", "entropy", "--exit-agreement", "0.8", "--calib", text,
                                    "--calib-tokens", "512", "--exit-kv", kv});
            return without(j, {"seconds", "tokens_per_s", "provenance"});
        };
        const json one = measured(1);
        EXPECT_GT(one["exit"]["exits"][0], 0);
        EXPECT_EQ(measured(3), one);
    }
}

TEST_F(ManyProcesses, Analysis) {
    const auto measured = [&](int count) {
        return result(count, {"analyze", kModel, "--calib", kFixtures + "/README.md", "--sequence-length",
                              "16", "--calib-tokens", "112", "--threads", "1"});
    };
    const json one = measured(1);
    EXPECT_EQ(one["text"]["sequences"], 7);
    EXPECT_EQ(measured(3), one);
    // From the first process's cache, whatever the others have.
    fs::remove_all(folder / "cache/1");
    EXPECT_EQ(measured(3), one);
}

TEST_F(ManyProcesses, Calibration) {
    write_all(folder / "recipe.yaml", "calibration: {text: " + kFixtures +
                                          "/README.md, tokens: 512, length: 32}\n"
                                          "steps:\n"
                                          "  - {method: direct_share, ratio: 0.3, share: qkv}\n"
                                          "  - {method: refit}\n");
    const auto solved = [&](int count) {
        const json j = result(count, {"compress", kModel, "-o", folder / fmt::format("{}.gguf", count), "-t",
                                      "1", "-r", folder / "recipe.yaml"});
        return j["steps"].back()["details"]["solved"];
    };
    const json one = solved(1), two = solved(2);
    ASSERT_GT(one.size(), 1);
    ASSERT_EQ(one.size(), two.size());
    for (size_t i = 0; i < one.size(); ++i) {
        for (const char* key : {"error_before", "error_after"}) {
            const double value = one[i][key];
            EXPECT_NEAR(two[i][key].get<double>(), value, 1e-4 * value) << i << key;
        }
    }
}

// Processes measure other matrices each, and choose the same types as one; a run that is given again finds
// what the first process has measured.
TEST_F(ManyProcesses, Fit) {
    const std::vector<std::string> common = {"fit",
                                             kModel,
                                             "--bpw",
                                             "6",
                                             "--calib",
                                             kFixtures + "/README.md",
                                             "--calib-tokens",
                                             "512",
                                             "--sequence-length",
                                             "32",
                                             "-t",
                                             "1"};
    const auto fitted = [&](int count, const std::vector<std::string>& more) {
        std::vector<std::string> words = common;
        words.insert(words.end(), more.begin(), more.end());
        return result(count, words);
    };
    const std::string out = folder / "two.gguf";
    const json one = fitted(1, {"-o", folder / "one.gguf"}), two = fitted(2, {"-o", out});
    EXPECT_EQ(two["types"], one["types"]);
    EXPECT_EQ(two["file_bytes"], one["file_bytes"]);
    const double divergence = one["divergence"], predicted = one["predicted_divergence"];
    EXPECT_GT(divergence, 0);
    EXPECT_NEAR(two["divergence"].get<double>(), divergence, 1e-3 * divergence);
    EXPECT_NEAR(two["predicted_divergence"].get<double>(), predicted, 1e-3 * predicted);
    const json again = fitted(2, {"-o", folder / "again.gguf", "--work", out + ".fit"});
    // But for what was predicted before the first file was measured.
    const auto result_of = [](const json& fit) { return without(fit, {"output", "recipe_file", "ways"}); };
    EXPECT_EQ(result_of(again), result_of(two));
    const json mixed = fitted(2, {"-o", folder / "mixed.gguf", "--moves", "types,narrow"});
    EXPECT_GE(mixed["ways"].size(), 2);
    for (const auto& [option, value] : {std::pair{"--decode-speed", "1.1"}, {"--frontier", "1MiB"}}) {
        std::vector<std::string> words = common;
        if (option == std::string("--frontier")) words.erase(words.begin() + 2, words.begin() + 4);
        words.insert(words.end(), {option, value, "-o", folder / "f", "--text", kModel});
        if (option == std::string("--decode-speed")) words.resize(words.size() - 2);
        expect_error(refold(words, "", {"WORLD_SIZE=2", "RANK=0"}), 2, {option, "is for one process"});
    }
}

TEST_F(ManyProcesses, WhatIsWrongIsSaid) {
    const std::vector<std::string> ppl = {"eval", "ppl", kModel, "--text", folder / "nothing"};
    expect_error(refold(ppl, "", {"WORLD_SIZE=2", "RANK=0", "MASTER_ADDR=127.0.0.1"}), 2,
                 {"MASTER_PORT is not set"});
    expect_error(refold(ppl, "", {"WORLD_SIZE=2", "RANK=2", "MASTER_ADDR=a", "MASTER_PORT=1"}), 2,
                 {"RANK", "'2'"});
    // A slower process may only notice that the other one has ended.
    const auto both = outcomes(2, ppl);
    for (const Outcome& outcome : both) expect_error(outcome, 1, {});
    EXPECT_THAT(both[0].err + both[1].err, HasSubstr("nothing"));
}

// Processes share the sequences of a batch, and with `weights=bf16` gradients and weights' state as well.
TEST_F(ManyProcesses, Training) {
    write_all(folder / "text", excerpt(12));
    int64_t run = 0;
    const auto trained = [&](int count, const std::string& weights) {
        const std::string out = folder / fmt::format("out{}.gguf", run++);
        const json j = result(count, {"train", kModel, "-o", out, "--data", folder / "text", "-t", "1",
                                      "--set", "context=16", "--set", "batch=4", "--set", "steps=6", "--set",
                                      "learning_rate=1e-3", "--set", "weights=" + weights});
        EXPECT_TRUE(fs::exists(out));
        EXPECT_FALSE(fs::exists(out + ".work"));
        return j["steps"][0]["details"];
    };
    for (const auto& [weights, tolerance] : {std::pair("f32", 1e-4), std::pair("bf16", 1e-2)}) {
        const json one = trained(1, weights), two = trained(2, weights);
        for (const char* figure : {"held_out_before", "held_out_after", "loss"})
            EXPECT_NEAR(two[figure].get<double>(), one[figure].get<double>(), tolerance) << figure;
        EXPECT_LT(two["held_out_after"], two["held_out_before"]);
        EXPECT_EQ(two["memory"]["weights"], one["memory"]["weights"]);
        EXPECT_NEAR(two["memory"]["optimizer"].get<double>(), one["memory"]["optimizer"].get<double>() / 2,
                    16);
    }
    // What a plan says.
    const json plan =
        refold_json({"train", kModel, "--dry-run", "--set", "weights=bf16", "--set", "steps=6"});
    const json details = plan["steps"][0]["details"], run_memory = trained(2, "bf16")["memory"];
    for (const char* part : {"weights", "optimizer"})
        EXPECT_EQ(details["expected_memory"]["2"][part], run_memory[part]) << part;
    EXPECT_GE(details["expected_memory"]["2"]["gradients"], run_memory["gradients"]);
}

}  // namespace
}  // namespace refold
#endif  // REFOLD_HAVE_TORCH
