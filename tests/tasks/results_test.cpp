// Figures as JSON, table and samples.
#include "tasks/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>
#include <tuple>

#include "core/json_number.h"
#include "tasks/samples.h"
#include "tasks/table.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::_;

// A run with `right` of `count` items answered correctly.
TaskRun run_of(const std::string& name, const std::string& group, int count, int right) {
    TaskRun run;
    run.task.spec.name = name;
    run.task.spec.version = "1.0";
    run.task.spec.group = group;
    run.task.spec.shots = 5;
    run.task.spec.metrics = {"acc"};
    run.task.original = 100;
    run.task.data_file = "data.jsonl";
    run.values = {{"acc", 1, {}}};
    for (int i = 0; i < count; ++i) {
        TaskItem item;
        item.doc_id = i;
        item.doc = {{"question", "é?"}, {"id", i}};
        item.prompts = {"é?"};
        item.choices = {"a", "b"};
        item.gold = {0};
        run.task.items.push_back(item);
        for (int c = 0; c < 2; ++c) {
            Request r;
            r.item = static_cast<size_t>(i);
            r.context = "é?";
            r.continuation = c == 0 ? " a" : " b";
            r.cut = i == 0 && c == 1 ? 3 : 0;
            run.requests.push_back(r);
        }
        run.answers.push_back({{{i < right ? -1.25 : -3.0, true}, {-2.5, false}}, ""});
        run.values[0].values.push_back(i < right ? 1 : 0);
    }
    run.results = {aggregate(run.task.spec, run.values[0], 1)};
    return run;
}

std::vector<TaskRun> runs() {
    std::vector<TaskRun> out;
    out.push_back(run_of("group_b", "group", 10, 5));
    out.push_back(run_of("alone", "", 4, 3));
    out.back().task.fewshot_file = "train.jsonl";
    out.back().task.fewshot_sha256 = "ff";
    out.push_back(run_of("group_a", "group", 30, 24));
    return out;
}

TEST(Results, KeysAreThoseOfLmEval) {
    const auto all = runs();
    const auto out = results_json(all);
    EXPECT_EQ(out["results"]["alone"]["alias"], "alone");
    EXPECT_EQ(out["results"]["alone"]["acc,none"], 0.75);
    EXPECT_DOUBLE_EQ(out["results"]["alone"]["acc_stderr,none"].get<double>(), 0.25);
    EXPECT_EQ(out["n-shot"]["alone"], 5);
    EXPECT_EQ(out["versions"]["alone"], 1.0);
    EXPECT_EQ(json(out["n-samples"]["alone"]), (json{{"original", 100}, {"effective", 4}}));
    EXPECT_EQ(out["higher_is_better"]["alone"]["acc"], true);
    EXPECT_EQ(out["configs"]["alone"]["output_type"], "multiple_choice");
    EXPECT_EQ(out["truncated"]["alone"], 1);
    EXPECT_EQ(out["data"]["alone"]["file"], "data.jsonl");
    EXPECT_EQ(json(out["data"]["alone"]["fewshot"]), (json{{"file", "train.jsonl"}, {"sha256", "ff"}}));
    EXPECT_FALSE(out["data"]["group_a"].contains("fewshot"));
}

TEST(Results, GroupsAreWeightedBySize) {
    const auto all = runs();
    const auto out = results_json(all);
    EXPECT_EQ(json(out["group_subtasks"]["group"]), (json{"group_b", "group_a"}));
    EXPECT_DOUBLE_EQ(out["groups"]["group"]["acc,none"].get<double>(), 29.0 / 40);
    EXPECT_EQ(out["results"]["group"]["sample_len"], 40);
    // Pooled: sqrt(sum((n - 1) se^2 n) / (N - k) / N).
    const double a = out["results"]["group_a"]["acc_stderr,none"],
                 b = out["results"]["group_b"]["acc_stderr,none"];
    EXPECT_DOUBLE_EQ(out["groups"]["group"]["acc_stderr,none"].get<double>(),
                     std::sqrt((29 * a * a * 30 + 9 * b * b * 10) / 38 / 40));
}

TEST(Results, GroupsWithinGroups) {
    std::vector<TaskRun> all;
    for (const auto& [name, subgroup, count, right] :
         {std::tuple{"m_c", "m_y", 10, 5}, {"m_a", "m_x", 4, 1}, {"m_b", "m_y", 30, 24}, {"m_d", "", 6, 6}}) {
        all.push_back(run_of(name, "m", count, right));
        all.back().task.spec.subgroup = subgroup;
    }
    const auto out = results_json(all);
    EXPECT_EQ(json(out["group_subtasks"]),
              (json{{"m", {"m_y", "m_x", "m_d"}}, {"m_x", {"m_a"}}, {"m_y", {"m_c", "m_b"}}}));
    EXPECT_DOUBLE_EQ(out["groups"]["m"]["acc,none"].get<double>(), 36.0 / 50);  // of items, not of subgroups
    EXPECT_DOUBLE_EQ(out["groups"]["m_y"]["acc,none"].get<double>(), 29.0 / 40);
    EXPECT_EQ(out["configs"]["m_b"]["group"], "m_y");
    const std::string table = results_table(out);
    std::vector<std::string> names;
    std::istringstream lines(table);
    for (std::string line; std::getline(lines, line);)
        names.push_back(line.empty() ? "" : line.substr(1, line.find('|', 1) - 1));
    EXPECT_THAT(names, testing::ElementsAre(" Tasks ", "-------", "m      ", " - m_d ", " - m_x ", "  - m_a",
                                            " - m_y ", "  - m_b", "  - m_c", _, "Groups", "------", "m     ",
                                            " - m_x", " - m_y"));
}

TEST(Results, OneItemHasNoError) {
    std::vector<TaskRun> one;
    one.push_back(run_of("alone", "", 1, 1));
    EXPECT_EQ(results_json(one)["results"]["alone"]["acc_stderr,none"], "N/A");
    EXPECT_THAT(results_table(results_json(one)), testing::HasSubstr("|   N/A|"));
}

TEST(Results, TableOfLmEval) {
    const auto all = runs();
    EXPECT_EQ(results_table(results_json(all)),
              "|  Tasks   |Version|Filter|n-shot|Metric|   |Value |   |Stderr|\n"
              "|----------|------:|------|-----:|------|---|-----:|---|-----:|\n"
              "|group     |    1.0|none  |     5|acc   |↑  |0.7250|±  |0.0693|\n"
              "| - group_a|    1.0|none  |     5|acc   |↑  |0.8000|±  |0.0743|\n"
              "| - group_b|    1.0|none  |     5|acc   |↑  |0.5000|±  |0.1667|\n"
              "|alone     |    1.0|none  |     5|acc   |↑  |0.7500|±  |0.2500|\n"
              "\n"
              "|Groups|Version|Filter|n-shot|Metric|   |Value |   |Stderr|\n"
              "|------|------:|------|-----:|------|---|-----:|---|-----:|\n"
              "|group |    1.0|none  |     5|acc   |↑  |0.7250|±  |0.0693|\n");
}

TEST(Samples, OneLinePerItemAsLmEvalWritesIt) {
    std::vector<TaskRun> one;
    one.push_back(run_of("alone", "", 2, 1));
    std::istringstream lines(samples_jsonl(one));
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    const json first = json::parse(line);
    EXPECT_EQ(first["doc_id"], 0);
    EXPECT_EQ(first["doc"]["question"], "é?");
    EXPECT_EQ(first["target"], "0");
    EXPECT_EQ(first["arguments"]["gen_args_1"], (json{{"arg_0", "é?"}, {"arg_1", " b"}}));
    EXPECT_EQ(first["resps"], json::parse(R"([[["-1.25", "True"]], [["-2.5", "False"]]])"));
    EXPECT_EQ(first["filtered_resps"], json::parse(R"([["-1.25", "True"], ["-2.5", "False"]])"));
    EXPECT_EQ(first["metrics"], json{"acc"});
    EXPECT_EQ(first["acc"], 1.0);
    // Python: hashlib.sha256(json.dumps({"question": "é?", "id": 0}, indent=2, ensure_ascii=False).encode())
    EXPECT_EQ(first["doc_hash"], "097218737483546b543f8c0bbb5afad863d7864322f9be9edd0f2716262e7acd");
    EXPECT_EQ(first["target_hash"], "5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9");
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_EQ(json::parse(line)["acc"], 0.0);
    EXPECT_FALSE(std::getline(lines, line));
}

TEST(Samples, IntegersHaveTheDigitsOfTheData) {
    TaskRun run = run_of("alone", "", 1, 1);
    run.task.items[0].doc = parse_exact(R"({"q": [123456789012345678901234567890, {}, []], "a": {"b": -1}})");
    const std::string line = samples_jsonl(std::span(&run, 1));
    EXPECT_THAT(line,
                testing::HasSubstr(R"("doc":{"q":[123456789012345678901234567890,{},[]],"a":{"b":-1}})"));
    // As above, of Python's json.dumps(..., indent=2).
    EXPECT_EQ(json::parse(line)["doc_hash"],
              "d84b418f9cdef485e83428fb1f0e5c3eb00d8f9d96d79fbe42ca34bd2a84caaa");
}

TEST(Samples, GeneratedText) {
    TaskRun run = run_of("alone", "", 1, 1);
    run.task.spec.output = TaskOutput::generate_until;
    run.task.spec.generation.until = {"\n"};
    run.task.items[0].references = {"x", "y"};
    run.requests.resize(1);
    run.answers = {{{}, "text"}};
    const json line = json::parse(samples_jsonl(std::span(&run, 1)));
    EXPECT_EQ(line["resps"], json::parse(R"([["text"]])"));
    EXPECT_EQ(line["filtered_resps"], json{"text"});
    EXPECT_EQ(line["arguments"]["gen_args_0"]["arg_1"]["until"], json{"\n"});
}

}  // namespace
}  // namespace refold
