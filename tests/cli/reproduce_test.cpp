// refold reproduce.
#include <cmath>

#include "cli/refold.h"
#include "cli/tiny_model.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// A table of its own, on the tiny model under the name of one of the papers' models.
class Reproduce : public testing::Test {
protected:
    Reproduce() {
        namespace fs = std::filesystem;
        for (const char* name : {"papers/000", "papers/models", "models", "texts"})
            fs::create_directories(folder / name);
        write_all(table, R"(
place: Table 1
title: sharing
columns:
  parameters: {measure: parameters}
  perplexity: {measure: perplexity, text: a.txt}
  loss: {measure: loss, text: a.txt}
  decode: {measure: command, command: "eval ppl {model} --text {texts}/a.txt --max-windows 1", value: /tokens_scored}
  memory: {why: of another program}
  mean: {measure: mean, of: [perplexity, loss]}
rows:
  - {name: dense, model: small, published: ["176712", "1", "0.5", "", "3", ""]}
  - {name: shared, model: small, steps: [{method: direct_share, ratio: 0.3}], published: ["164424", "2", "", "", "", ""]}
  - {name: other, model: small, why: nobody has it}
)");
        // The configuration of the tiny model.
        fs::copy(kFixtures + "/hf/llama_gqa/config.json", folder / "papers/models/small.json");
        fs::copy(kModel, folder / "models/small.gguf");
        write_random_text(folder / "texts/a.txt");
    }
    std::vector<std::string> words(std::vector<std::string> more = {}) const {
        std::vector<std::string> all = {
            "reproduce",      table,    "--models",      folder / "models", "--texts",
            folder / "texts", "--work", folder / "work", "--max-windows",   "2"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    const json& cell(const json& result, size_t row, size_t column) const {
        return result["rows"][row]["cells"][column];
    }

    const TempFolder folder;
    const std::string table = folder / "papers/000/table-1.yaml";
};

TEST_F(Reproduce, PublishedHereAndDifference) {
    const json result = refold_json(words());
    ASSERT_EQ(result["rows"].size(), 3U);
    EXPECT_EQ(cell(result, 0, 0)["equal_as_printed"], true);
    EXPECT_EQ(cell(result, 1, 0)["here"], 164424);
    const double perplexity = cell(result, 0, 1)["here"];
    EXPECT_NEAR(std::log(perplexity), cell(result, 0, 2)["here"].get<double>(), 1e-12);
    EXPECT_NEAR(cell(result, 0, 5)["here"].get<double>(), (perplexity + std::log(perplexity)) / 2, 1e-9);
    EXPECT_NE(cell(result, 1, 1)["here"], perplexity);
    EXPECT_GT(cell(result, 0, 3)["here"], 100);      // printed for no row, so measured for all
    EXPECT_EQ(cell(result, 1, 2)["here"], nullptr);  // printed for the other row
    EXPECT_EQ(cell(result, 0, 4)["note"], "of another program");
    EXPECT_EQ(cell(result, 2, 0)["here"], nullptr);
    EXPECT_EQ(cell(result, 2, 0)["note"], "nobody has it");
    // The same number as the command says, which is printed.
    const json direct = refold_json({"eval", "ppl", folder / "models/small.gguf", "--text",
                                     folder / "texts/a.txt", "--max-windows", "2"});
    EXPECT_EQ(direct["perplexity"], perplexity);
    EXPECT_THAT(result["commands"].dump(), HasSubstr("refold compress"));
}

TEST_F(Reproduce, KnownNumbersAreNotMeasuredAgain) {
    const json first = refold_json(words({"--rows", "shared"}));
    EXPECT_EQ(first["rows"].size(), 1U);
    // What is kept is shown; the other rows are measured.
    std::string numbers = read_all(folder / "work/numbers.jsonl");
    const std::string value = cell(first, 0, 1)["here"].dump();
    const size_t at = numbers.find("\"number\":" + value);
    ASSERT_NE(at, std::string::npos) << numbers;
    numbers.replace(at, 9 + value.size(), "\"number\":42.5");
    write_all(folder / "work/numbers.jsonl", numbers);
    const json again = refold_json(words());
    EXPECT_EQ(cell(again, 1, 1)["here"], 42.5);
    EXPECT_NE(cell(again, 0, 1)["here"], nullptr);
    // Another text is another number.
    write_random_text(folder / "texts/a.txt", 2, 5000);
    EXPECT_NE(cell(refold_json(words({"--rows", "shared"})), 0, 1)["here"], 42.5);
}

#ifdef REFOLD_HAVE_TORCH
// Points of one training, of which heads are shared in each.
TEST_F(Reproduce, RowsOfOneTraining) {
    std::string text = R"(
place: Figure 1
title: lengths of training
columns:
  perplexity: {measure: perplexity, text: a.txt}
rows:
  - {name: half, model: small, kept: 1, published: ["1"],
     steps: [&training {method: train, steps: 2, batch: 1, context: 16, keep: 2, learning_rate: 1e-3},
             &sharing {method: direct_share, ratio: 0.3, matching: original}]}
  - {name: whole, model: small, kept: 2, steps: [*training, *sharing], published: ["1"]}
  - {name: not shared, model: small, kept: 2, steps: [*training], published: ["1"]}
)";
    write_all(table, text);
    const auto with_text = [&](std::vector<std::string> more) {
        more.insert(more.end(), {"--train", folder / "texts/a.txt"});
        return words(more);
    };
    const json one = refold_json(with_text({"--rows", "half"}));
    const auto left = [&] {
        size_t count = 0;
        for (const auto& entry : std::filesystem::directory_iterator(folder / "work"))
            count += entry.path().filename().string().starts_with("training-") &&
                             entry.path().extension() == ".gguf"
                         ? 1
                         : 0;
        return count;
    };
    EXPECT_EQ(left(), 1U);  // for the other rows
    const json all = refold_json(with_text({}));
    EXPECT_EQ(left(), 0U);
    EXPECT_EQ(cell(all, 0, 0)["here"], cell(one, 0, 0)["here"]);
    for (const size_t other : {1U, 2U}) EXPECT_NE(cell(all, other, 0)["here"], cell(all, 0, 0)["here"]);
    EXPECT_NE(cell(all, 1, 0)["here"], cell(all, 2, 0)["here"]);
    const std::string commands = all["commands"].dump();
    EXPECT_THAT(commands, HasSubstr("step-1/kept-2-of-2.gguf -o row-2.gguf"));
    EXPECT_THAT(commands, HasSubstr("--original small"));
    // The same as the recipe whole.
    text.erase(text.find("kept: 2, "), 9);
    write_all(table, text);
    const json whole = refold_json(with_text({"--rows", "whole"}));
    EXPECT_EQ(cell(whole, 0, 0)["here"], cell(all, 1, 0)["here"]);
    text.replace(text.find("kept: 1"), 7, "kept: 3");
    write_all(table, text);
    expect_error(refold(with_text({})), 1, {"line 7", "'kept' is 3"});
}
#endif

TEST_F(Reproduce, ANumberPastTheEndOfAListIsNoFailure) {
    std::string text = read_all(table);
    const std::string old = "eval ppl {model} --text {texts}/a.txt --max-windows 1\", value: /tokens_scored";
    ASSERT_NE(text.find(old), std::string::npos);
    text.replace(text.find(old), old.size(), "inspect {model}\", value: /borrowed/attention/4");
    write_all(table, text);
    for (int run = 0; run < 2; ++run)
        EXPECT_EQ(cell(refold_json(words()), 1, 3)["note"], "this model has none");
    text.replace(text.find("attention/4"), 11, "attention/3");
    write_all(table, text);
    const json result = refold_json(words());
    EXPECT_EQ(cell(result, 0, 3)["here"], 0);
    EXPECT_GT(cell(result, 1, 3)["here"], 0);
}

// Rows that measure one model in several ways.
TEST_F(Reproduce, RowsWithTheSameRecipeShareTheModel) {
    std::string text = read_all(table);
    text +=
        R"(  - {name: with options, model: small, steps: [{method: direct_share, ratio: 0.3}], options: ["--threads", "1"],
     published: ["", "2", "", "", "", ""]}
  - {name: less, model: small, steps: [{method: direct_share, ratio: 0.2}], published: ["", "2", "", "", "", ""]}
)";
    text.replace(text.find("  - {name: other"), text.find("  - {name: with") - text.find("  - {name: other"),
                 "");
    write_all(table, text);
    const Outcome done = refold(words({"--json"}));
    ASSERT_EQ(done.code, 0) << done.err;
    const json result = json::parse(done.out);
    EXPECT_EQ(cell(result, 1, 1)["here"], cell(result, 2, 1)["here"]);
    EXPECT_NE(cell(result, 1, 1)["here"], cell(result, 3, 1)["here"]);
    std::vector<std::string> made;
    for (const json& command : result["commands"])
        if (command.get<std::string>().starts_with("refold compress")) made.push_back(command);
    EXPECT_THAT(made, testing::ElementsAre(HasSubstr("row-2.gguf"), HasSubstr("row-4.gguf")));
    size_t written = 0;
    for (size_t at = 0; (at = done.err.find("wrote ", at)) != std::string::npos; ++at) ++written;
    EXPECT_EQ(written, 2U) << done.err;
    EXPECT_FALSE(std::filesystem::exists(folder / "work/row-4.gguf"));
}

TEST_F(Reproduce, WritesAPage) {
    for (const char* name : {"t.html", "t.md", "t.json"}) {
        const Outcome done = refold(words({"--rows", "dense", "-o", folder / name}));
        EXPECT_EQ(done.code, 0) << done.err;
        EXPECT_THAT(done.out, HasSubstr("176712"));
        EXPECT_THAT(read_all(folder / name), HasSubstr("176712"));
    }
    expect_error(refold(words({"-o", folder / "t.md"})), 2, {"t.md", "--overwrite"});
    expect_error(refold(words({"-o", folder / "t.pdf"})), 2, {"t.pdf"});
}

TEST_F(Reproduce, WhatIsMissingIsSaid) {
    const Outcome none = refold({"reproduce", table, "--work", folder / "work"});
    EXPECT_EQ(none.code, 0) << none.err;
    EXPECT_THAT(none.out, HasSubstr("needs the model small (--models)"));
    EXPECT_THAT(none.out, HasSubstr("164424"));
    const Outcome no_text =
        refold({"reproduce", table, "--models", folder / "models", "--work", folder / "work"});
    EXPECT_THAT(no_text.out, HasSubstr("needs the text a.txt (--texts)"));
    expect_error(refold(words({"--rows", "shard"})), 2, {"there is no row 'shard'", "shared"});
    expect_error(refold(words({"--columns", "perplxity"})), 2,
                 {"there is no column 'perplxity'", "perplexity"});
    const json one = refold_json(words({"--columns", "loss"}));
    EXPECT_EQ(cell(one, 0, 1)["note"], "left out");
    EXPECT_NE(cell(one, 0, 2)["here"], nullptr);
    expect_error(refold({"reproduce", folder / "no.yaml"}), 1, {"no.yaml"});
    expect_error(refold({"reproduce"}), 2, {"TABLE"});
    expect_error(refold({"reproduce", "--list", folder / "models"}), 1, {"there are no tables"});
}

TEST_F(Reproduce, OnAnotherModel) {
    share(folder / "other.gguf");
    const json result = refold_json({"reproduce", table, "--model", folder / "other.gguf", "--texts",
                                     folder / "texts", "--work", folder / "work", "--max-windows", "1"});
    EXPECT_LT(cell(result, 0, 0)["here"], 176712);
    EXPECT_EQ(result["model"], folder / "other.gguf");
}

TEST_F(Reproduce, AnotherTaskInPlaceOfOneWithoutData) {
    write_all(table, R"(
place: Table 1
title: sharing
columns:
  physics: {measure: task, task: piqa_of_the_paper, metric: acc, scale: 100}
rows:
  - {name: dense, model: small, published: ["50"]}
)");
    const std::vector<std::string> data = {"--data", kFixtures + "/tasks", "--limit", "4", "--task"};
    const auto with = [&](const std::string& task) {
        std::vector<std::string> more = data;
        more.push_back(task);
        return words(more);
    };
    const json result = refold_json(with("piqa_of_the_paper=piqa"));
    EXPECT_NE(cell(result, 0, 0)["here"], nullptr);
    EXPECT_EQ(result["settings"], "4 items of each task, piqa instead of piqa_of_the_paper");
    EXPECT_THAT(result["commands"].dump(), HasSubstr("--tasks piqa --data"));
    expect_error(refold(with("piqa=piqa_of_the_paper")), 2, {"no column has the task 'piqa'"});
    expect_error(refold(with("piqa_of_the_paper=")), 2, {"--task", "NAME=OTHER"});
}

TEST_F(Reproduce, FewerItemsOfOneTask) {
    write_all(table, R"(
place: Table 1
title: sharing
columns:
  physics: {measure: task, task: piqa, metric: acc}
  story: {measure: task, task: lambada_openai, metric: acc}
rows:
  - {name: dense, model: small, published: ["50", "50"]}
)");
    const auto with = [&](const std::string& limit) {
        return words({"--data", kFixtures + "/tasks", "--limit", "4", "--limit", limit});
    };
    const json result = refold_json(with("piqa=2"));
    EXPECT_EQ(result["settings"], "4 items of each task, 2 of piqa");
    EXPECT_THAT(result["commands"].dump(), HasSubstr("--tasks piqa --data"));
    EXPECT_THAT(result["commands"][0].get<std::string>(), HasSubstr("--limit 2"));
    EXPECT_THAT(result["commands"][1].get<std::string>(), HasSubstr("--limit 4"));
    expect_error(refold(with("arc_easy=2")), 2, {"no column has the task 'arc_easy'"});
    for (const char* wrong : {"piqa=", "piqa=0", "x", "=x"})
        expect_error(refold(with(wrong)), 2, {"--limit", "expected N or NAME=N"});
}

TEST_F(Reproduce, AFailingCommandIsOneCell) {
    std::string text = read_all(table);
    text.replace(text.find("--max-windows 1"), 15, "--no-such-word");
    write_all(table, text);
    const Outcome done = refold(words({"--json"}));
    ASSERT_EQ(done.code, 0) << done.err;
    const json result = json::parse(done.out);
    EXPECT_THAT(cell(result, 0, 3)["note"].get<std::string>(), HasSubstr("failed"));
    EXPECT_NE(cell(result, 0, 1)["here"], nullptr);
    EXPECT_THAT(done.err, HasSubstr("--no-such-word"));
}

TEST_F(Reproduce, ListsAll) {
    const json all = refold_json({"reproduce", "--list", folder / "papers", "--models", folder / "models"});
    ASSERT_EQ(all.size(), 1U);
    EXPECT_EQ(all[0]["state"], "some columns");
    EXPECT_EQ(all[0]["missing_models"], json::array());
    const Outcome text = refold({"reproduce", "--list", folder / "papers"});
    EXPECT_THAT(text.out,
                HasSubstr("Table 1: sharing\n    some columns; needs small; texts - not here: small"));
}

TEST(ReproduceDocumentation, IsFresh) {
    const TempFolder folder;
    const Outcome made = Process({"scripts/make-papers-docs", REFOLD_BINARY, folder / "papers.md"}).wait();
    ASSERT_EQ(made.code, 0) << made.err;
    EXPECT_TRUE(read_all(folder / "papers.md") == read_all("docs/papers.md"))
        << "run scripts/make-papers-docs";
}

}  // namespace
}  // namespace refold
