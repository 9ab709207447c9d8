#include "tasks/load_task.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <set>

#include "core/environment.h"
#include "core/error_of.h"
#include "core/temp_folder.h"
#include "core/text.h"
#include "tasks/builtin.h"

namespace refold {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kFolder = std::string(REFOLD_FIXTURES) + "/tasks";

Task load(const std::string& name, const std::string& folder = kFolder) {
    return load_task(name, {.data = folder});
}

// ---- tasks that lm-evaluation-harness lacks; golden_test.cpp has the others ----

TEST(BuiltinTasks, NliInChineseLeavesOutItemsWithoutLabel) {
    for (const char* name : {"cmnli", "ocnli"}) {
        const Task task = load(name);
        ASSERT_EQ(task.items.size(), 3u) << name;
        EXPECT_EQ(task.items[0].prompts[0],
                  "语句一：“船在中午离开了港口”\n语句二：“一艘船离开了”\n请问这两句话是什么关系？");
        EXPECT_THAT(task.items[0].choices, ElementsAre("矛盾", "蕴含", "无关"));
        EXPECT_EQ(task.spec.target_delimiter, "\n");
        EXPECT_THAT(task.items[0].gold, ElementsAre(1));
        EXPECT_THAT(task.items[1].gold, ElementsAre(0));
        EXPECT_THAT(task.items[2].gold, ElementsAre(2));
        EXPECT_EQ(task.items[2].doc_id, 2);
    }
}

TEST(BuiltinTasks, CslComparesWholeTexts) {
    const Task task = load("csl");
    EXPECT_EQ(task.items[0].prompts[0], "");
    EXPECT_THAT(task.items[0].choices,
                ElementsAre("摘要：本文研究小船的漂移。", "摘要：本文研究小船的漂移。\n关键词：小船，漂移"));
    EXPECT_THAT(task.items[0].gold, ElementsAre(1));
    EXPECT_THAT(task.items[1].gold, ElementsAre(0));
    EXPECT_EQ(task.spec.target_delimiter, "");
}

TEST(BuiltinTasks, TnewsHasFifteenKinds) {
    const Task task = load("tnews");
    EXPECT_EQ(task.items[0].prompts[0], "以下内容属于什么新闻：主队昨天赢了两球。");
    ASSERT_EQ(task.items[0].choices.size(), 15u);
    EXPECT_EQ(task.items[0].choices[static_cast<size_t>(task.items[0].gold[0])], "体育类别新闻");
    EXPECT_EQ(task.items[1].choices[static_cast<size_t>(task.items[1].gold[0])], "股票市场类别新闻");
}

TEST(BuiltinTasks, DiagnosticsOfSuperGlue) {
    for (const char* name : {"axb", "axg"}) {
        const Task task = load(name);
        EXPECT_EQ(task.items[0].prompts[0],
                  "The ship left the harbour at noon.\nA ship left.\nIs the sentence below entailed by the "
                  "sentence above?");
        EXPECT_THAT(task.items[0].choices, ElementsAre("Yes", "No"));
        EXPECT_THAT(task.items[0].gold, ElementsAre(0));
        EXPECT_THAT(task.items[1].gold, ElementsAre(1));
    }
}

TEST(BuiltinTasks, RaceMiddleHasAnItemPerQuestion) {
    const Task task = load("race_middle");
    ASSERT_EQ(task.items.size(), 4u);
    EXPECT_EQ(task.items[1].prompts[0],
              "Read the article, and answer the question by replying A, B, C or D.\n\nArticle:\nTom has a "
              "blue boat.\n"
              "He sees a dog on it.\n\nQ: What does Tom see?\n\nA. a dog\nB. a cat\nC. a cow\nD. a hen\nA:");
    EXPECT_THAT(task.items[1].gold, ElementsAre(0));
    EXPECT_THAT(task.items[3].gold, ElementsAre(2));
}

TEST(BuiltinTasks, FeverOfBothForms) {
    const Task paper = load("fever");
    ASSERT_EQ(paper.items.size(), 3u);
    EXPECT_EQ(paper.spec.output, TaskOutput::label_probability);
    EXPECT_EQ(paper.items[0].prompts[0],
              "Consider the following claim: Water is wet. Is this claim true or false. The claim is");
    EXPECT_EQ(paper.items[1].prompts[0],
              "Consider the following claim: Is snow black? Is this claim true or false. The claim is");
    EXPECT_EQ(paper.items[2].prompts[0],
              "Consider the following claim: Iron floats. Is this claim true or false. The claim is");
    EXPECT_THAT(paper.items[0].choices, ElementsAre("false", "true"));
    EXPECT_THAT(paper.items[0].gold, ElementsAre(1));
    EXPECT_THAT(paper.items[2].gold, ElementsAre(0));

    const TempFolder folder;
    std::filesystem::create_directory(folder / "bigbench");
    std::filesystem::copy(kFolder + "/bigbench/fact_checker_fever.task.json", folder / "bigbench");
    const Task bigbench = load("fever", folder / "");
    EXPECT_EQ(bigbench.items[0].prompts[0],
              "Consider the following claim: The moon is a star. Is this claim true or false. The claim is");
    EXPECT_THAT(bigbench.items[0].gold, ElementsAre(0));
}

TEST(BuiltinTasks, QuestionsAnsweredFreely) {
    const Task wikidata = load("qa_wikidata");
    ASSERT_EQ(wikidata.items.size(), 2u);  // the other item has two answers
    EXPECT_EQ(wikidata.items[0].prompts[0], "The capital of Norway is");
    EXPECT_THAT(wikidata.items[0].references, ElementsAre("Oslo"));
    EXPECT_EQ(wikidata.items[1].prompts[0], "The language of the song is");
    EXPECT_EQ(wikidata.spec.generation.max_tokens, 10);
    EXPECT_TRUE(wikidata.spec.generation.until.empty());

    const Task hotpot = load("hotpotqa");
    EXPECT_EQ(hotpot.items[0].prompts[0], "Who built the bridge that the king crossed? The answer is");
    EXPECT_EQ(hotpot.items[1].prompts[0], "name of the larger lake? The answer is");
    EXPECT_THAT(hotpot.items[0].references, ElementsAre("A mason"));
}

TEST(BuiltinTasks, BiosKeepsTheProfessionsOfOneToken) {
    const Task task = load("bios_profession");
    ASSERT_EQ(task.items.size(), 2u);
    EXPECT_EQ(task.items[0].prompts[0],
              "Consider the following text: She writes verses and lives by the sea. What is the profession "
              "of the person "
              "in this text? The profession of this person is");
    EXPECT_EQ(task.items[0].choices[static_cast<size_t>(task.items[0].gold[0])], "poet");
    EXPECT_EQ(task.items[1].choices[static_cast<size_t>(task.items[1].gold[0])], "architect");
}

// The last 20 % of the items of several splits; claims that occur twice count once, contradictory ones not at
// all.
TEST(BuiltinTasks, TestSplitsOfTensorLlm) {
    const TempFolder folder;
    std::filesystem::create_directories(folder / "fever");
    const auto claim = [](const char* text, const char* label) {
        return fmt::format("{{\"claim\": \"{}\", \"label\": \"{}\"}}\n", text, label);
    };
    write_all(folder / "fever/paper_dev.jsonl", claim("a", "SUPPORTS") + claim("b", "REFUTES") +
                                                    claim("a", "SUPPORTS") + claim("c", "NOT ENOUGH INFO") +
                                                    claim("d", "SUPPORTS"));
    write_all(folder / "fever/paper_test.jsonl", claim("b", "SUPPORTS") + claim("e", "REFUTES") +
                                                     claim("f", "SUPPORTS") + claim("g", "REFUTES"));
    const Task all = load("fever_all", folder / "");
    ASSERT_EQ(all.items.size(), 5u);  // a d e f g
    EXPECT_THAT(all.items[1].prompts[0], HasSubstr("claim: d. Is"));
    EXPECT_EQ(all.more_files.size(), 1u);
    EXPECT_EQ(all.more_files[0].second.size(), 64u);
    const Task test = load("fever_test", folder / "");
    ASSERT_EQ(test.items.size(), 1u);
    EXPECT_EQ(test.original, 1);
    EXPECT_EQ(test.items[0].doc_id, 4);
    EXPECT_THAT(test.items[0].prompts[0], HasSubstr("claim: g. Is"));
    EXPECT_THAT(test.items[0].gold, ElementsAre(0));
    EXPECT_EQ(load("fever", folder / "").items.size(), 4u);

    std::filesystem::create_directories(folder / "bigbench/qa_wikidata");
    std::string validation, train;
    for (int i = 0; i < 10; ++i)
        (i < 4 ? validation : train) +=
            fmt::format("{{\"inputs\": \"fact {} is \", \"targets\": [\"{}\"]}}\n", i, i);
    write_all(folder / "bigbench/qa_wikidata/validation.jsonl", validation);
    write_all(folder / "bigbench/qa_wikidata/train.jsonl", train);
    const Task facts = load("qa_wikidata_test", folder / "");
    ASSERT_EQ(facts.items.size(), 2u);
    EXPECT_EQ(facts.items[0].prompts[0], "fact 8 is");
    EXPECT_EQ(facts.spec.generation.masks, 5);
    EXPECT_EQ(load("hotpotqa_test").items.size() * 10, (load("hotpotqa").items.size() * 4 + 9) / 10 * 10);
    EXPECT_LE(load("bios_profession_test").items.size(), load("bios_profession").items.size());
    EXPECT_THAT(load("bios_profession_encoder_test").items[0].prompts[0],
                testing::EndsWith(" is called [MASK]."));
}

TEST(BuiltinTasks, AsOpenCompassAsks) {
    const Task letters = load("openbookqa_opencompass");
    EXPECT_EQ(letters.items[0].prompts[0],
              "Question: A stone falls because of\nA. gravity\nB. rain\nC. music\nD. paint\nAnswer:");
    EXPECT_EQ(letters.spec.target_delimiter, "\n");
    EXPECT_THAT(letters.items[0].gold, ElementsAre(0));
    EXPECT_THAT(load("race_high_opencompass").items[0].prompts[0],
                testing::AllOf(HasSubstr("replying A, B, C or D.\n\nArticle:\n"), testing::EndsWith("\nA:")));
    EXPECT_THAT(load("rte_opencompass").items[0].prompts[0],
                testing::EndsWith("\nIs the sentence below entailed by the sentence above?"));
    EXPECT_THAT(load("rte_opencompass").items[0].choices, ElementsAre("Yes", "No"));
    const Task boolq = load("boolq_opencompass");
    EXPECT_THAT(boolq.items[0].choices, ElementsAre("No", "Yes"));
    EXPECT_THAT(boolq.items[0].prompts[0], testing::EndsWith("?"));
    const Task winogrande = load("winogrande_opencompass");
    EXPECT_EQ(winogrande.items[0].prompts[0], "");
    EXPECT_THAT(winogrande.items[0].choices, testing::Each(testing::StartsWith("Good sentence: ")));
    EXPECT_NE(winogrande.items[0].choices[0], winogrande.items[0].choices[1]);
    EXPECT_EQ(winogrande.items[0].gold, load("winogrande").items[0].gold);
    const Task mmlu = load_task("mmlu_opencompass_anatomy", {.data = kFolder, .shots = 0});
    EXPECT_EQ(mmlu.spec.description,
              "The following are multiple choice questions (with answers) about  anatomy.\n\n");
    EXPECT_EQ(find_task("mmlu_opencompass_anatomy").spec.shots, 5);
    EXPECT_EQ(expand_tasks("mmlu_opencompass").size(), 57u);
}

TEST(BuiltinTasks, WholeTextsOfOpenCompass) {
    const TempFolder folder;
    for (const char* name : {"openbookqa", "winograd", "fewclue/ocnli", "fewclue/csl", "fewclue/tnews"})
        std::filesystem::create_directories(folder / name);
    write_all(
        folder / "openbookqa/test_complete.jsonl",
        R"({"question": {"stem": "A stone falls by", "choices": [{"text": "rain", "label": "A"}, )"
        R"({"text": "gravity", "label": "B"}, {"text": "x", "label": "C"}, {"text": "y", "label": "D"}]}, )"
        R"("fact1": "things fall", "answerKey": "B"})");
    const Task fact = load("openbookqa_fact", folder / "");
    EXPECT_EQ(fact.items[0].prompts[0],
              "Given the fact: things fall\nQuestion: A stone falls by\nA. rain\nB. gravity\nC. x\nD. "
              "y\nAnswer:");
    EXPECT_THAT(fact.items[0].gold, ElementsAre(1));
    write_all(
        folder / "winograd/wsc285.jsonl",
        R"({"text": "Ann thanked Sue because she helped.", "pronoun": "she", "options": ["Ann", "Sue"], "label": 1})");
    const Task winograd = load("winograd", folder / "");
    EXPECT_EQ(
        winograd.items[0].choices[1],
        "Ann thanked Sue because she helped. Q: In the previous text, what does 'she' refer to? A: Sue");
    EXPECT_THAT(winograd.items[0].gold, ElementsAre(1));
    write_all(folder / "fewclue/ocnli/dev_few_all.json",
              R"({"sentence1": "一", "sentence2": "二", "label": "neutral"})");
    const Task ocnli = load("ocnli_fc", folder / "");
    EXPECT_THAT(ocnli.items[0].choices, ElementsAre("阅读文章：一\n根据上文，回答如下问题：二？\n错",
                                                    "阅读文章：一\n根据上文，回答如下问题：二？\n对",
                                                    "如果一为真，那么二也为真吗？\n可能"));
    EXPECT_THAT(ocnli.items[0].gold, ElementsAre(2));
    write_all(folder / "fewclue/csl/dev_few_all.json", R"({"abst": "文", "keyword": ["词"], "label": "1"})");
    EXPECT_THAT(load("csl_dev", folder / "").items[0].choices,
                ElementsAre("摘要：文", "摘要：文\n关键词：词"));
    write_all(folder / "fewclue/tnews/dev_few_all.json",
              R"({"sentence": "球", "label_desc": "news_sports"})");
    const Task news = load("tnews_dev", folder / "");
    EXPECT_EQ(news.items[0].choices.size(), 15u);
    EXPECT_EQ(news.items[0].choices[static_cast<size_t>(news.items[0].gold[0])],
              "以下内容属于什么新闻：球。\n体育类别新闻");
}

TEST(BuiltinTasks, TranslationAsGpt2Learnt) {
    const Task task = load("wmt14_en_fr_gpt2");
    EXPECT_THAT(task.items[0].prompts[0], testing::EndsWith("<to-fr>"));
    EXPECT_EQ(task.items[0].references, load("wmt14_en_fr").items[0].references);
    EXPECT_THAT(task.spec.metrics, ElementsAre("bleu", "meteor"));
}

// Every kind of RULER's needles, with a text of numbered sentences around those that have one.
TEST(BuiltinTasks, NeedlesOfEveryKind) {
    const TempFolder folder;
    std::filesystem::create_directories(folder / "ruler");
    std::string essay;
    for (int i = 0; i < 400; ++i) essay += fmt::format("Sentence {} is here. ", i);
    write_all(folder / "ruler/paul_graham_essays.jsonl",
              nlohmann::json{{"text", essay}}.dump() + "\n" + nlohmann::json{{"text", essay}}.dump());
    struct Kind {
        const char* name;
        size_t answers, sentences;  // sentences 0: all
        const char* begins;
    };
    const std::string uuid = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}";
    for (const auto& [name, answers, sentences, begins] :
         {Kind{"niah_single_1", 1, 1, "A special magic number is"},
          Kind{"niah_single_2", 1, 1, "A special magic number is"},
          Kind{"niah_single_3", 1, 1, "A special magic uuid is"},
          Kind{"niah_multikey_1", 1, 4, "A special magic number is"},
          Kind{"niah_multikey_2", 1, 0, "A special magic number is"},
          Kind{"niah_multikey_3", 1, 0, "A special magic uuid is"},
          Kind{"niah_multivalue", 4, 4, "Some special magic numbers are"},
          Kind{"niah_multiquery", 4, 4, "Some special magic numbers are"}}) {
        const Task task = load_task(name, {.data = folder / "", .limit = 3, .length = 2000});
        ASSERT_EQ(task.items.size(), 3u) << name;
        for (const TaskItem& item : task.items) {
            const std::string& prompt = item.prompts[0];
            EXPECT_THAT(prompt, testing::StartsWith(begins)) << name;
            EXPECT_EQ(item.references.size(), answers) << name;
            size_t found = 0;
            for (size_t at = 0; (at = prompt.find("One of the special magic", at)) != std::string::npos; ++at)
                ++found;
            if (sentences > 0) {
                EXPECT_EQ(found, sentences) << name;
            } else {
                EXPECT_GT(found, 10u) << name;
            }
            for (const std::string& answer : item.references) {
                EXPECT_THAT(prompt, HasSubstr(" is: " + answer + ".")) << name;
                const bool uuids = std::string(begins).find("uuid") != std::string::npos;
                EXPECT_THAT(answer, testing::MatchesRegex(uuids ? uuid : "[0-9]{7}")) << name;
            }
            EXPECT_LE(item.doc["length"].get<int64_t>(), 2000);
            EXPECT_GT(item.doc["length"].get<int64_t>(), 700) << name;
            EXPECT_THAT(prompt, testing::EndsWith(answers == 1 ? "provided text is" : "provided text are"));
        }
        EXPECT_NE(task.items[0].references, task.items[1].references) << name;
    }
    // The keys of a question with four are all in the text.
    const Task four = load_task("niah_multiquery", {.data = folder / "", .limit = 1, .length = 2000});
    EXPECT_THAT(four.items[0].prompts[0],
                testing::ContainsRegex("for [a-z-]+, [a-z-]+, [a-z-]+, and [a-z-]+ men"));
    EXPECT_THAT(error_of([&] { load_task("niah_single_2", {.data = kFolder}); }, ErrorCode::io),
                HasSubstr("paul_graham_essays"));
    EXPECT_EQ(expand_tasks("ruler").size(), 8u);
}

TEST(BuiltinTasks, NeedlesAreGenerated) {
    const Task task = load_task("ruler_niah", {.limit = 3, .length = 600});
    ASSERT_EQ(task.items.size(), 3u);
    std::set<std::string> numbers;
    for (const TaskItem& item : task.items) {
        ASSERT_EQ(item.references.size(), 1u);
        EXPECT_THAT(item.prompts[0], HasSubstr(" is: " + item.references[0] + "."));
        EXPECT_THAT(item.prompts[0], testing::EndsWith("mentioned in the provided text is"));
        EXPECT_LE(item.doc["length"].get<int64_t>(), 600);
        numbers.insert(item.references[0]);
    }
    EXPECT_EQ(numbers.size(), 3u);
    EXPECT_EQ(load_task("ruler_niah", {.limit = 3, .length = 600}).items[2].prompts, task.items[2].prompts);
    EXPECT_GT(load_task("ruler_niah", {.limit = 1, .length = 2000}).items[0].prompts[0].size(),
              2 * task.items[0].prompts[0].size());
    // A tokenizer of one token per byte.
    const Task bytes =
        load_task("ruler_niah", {.limit = 1, .length = 2000, .count_tokens = [](const std::string& text) {
                                     return static_cast<int64_t>(text.size());
                                 }});
    EXPECT_LE(bytes.items[0].prompts[0].size(), 2000u);
    error_of([] { load_task("ruler_niah", {.length = 130}); }, ErrorCode::usage);
}

// ---- names ----

TEST(TaskNames, EveryFileIsATaskThatParses) {
    EXPECT_EQ(builtin_task_files().size(), 33u);
    for (const BuiltinTaskFile& file : builtin_task_files()) {
        for (const TaskFile& task : parse_task_file(std::string(file.text), std::string(file.name))) {
            EXPECT_FALSE(task.about.empty()) << file.name;
            EXPECT_FALSE(task.source.empty()) << file.name;
            EXPECT_FALSE(task.licence.empty()) << file.name;
            EXPECT_TRUE(!task.generator.empty() || !task.data.empty());
        }
    }
}

TEST(TaskNames, GroupsAndOtherNames) {
    EXPECT_EQ(expand_tasks("mmlu").size(), 57u);
    EXPECT_EQ(expand_tasks("ceval").size(), 52u);
    EXPECT_EQ(expand_tasks("cmmlu").size(), 67u);
    EXPECT_THAT(expand_tasks("race"), ElementsAre("race_high"));
    EXPECT_THAT(expand_tasks("piqa"), ElementsAre("piqa"));
    EXPECT_EQ(expand_tasks("mmlu_stem").size(), 19u);
    EXPECT_EQ(expand_tasks("mmlu_other").size(), 13u);
    EXPECT_EQ(expand_tasks("mmlu_social_sciences").size(), 12u);
    EXPECT_EQ(expand_tasks("mmlu_humanities").size(), 13u);
    EXPECT_EQ(load("mmlu_anatomy").spec.group, "mmlu");
    EXPECT_EQ(load("mmlu_anatomy").spec.subgroup, "mmlu_stem");
    EXPECT_THAT(error_of([] { load_task("mmlu", {}); }, ErrorCode::usage), HasSubstr("a group of 57 tasks"));
}

TEST(TaskNames, UnknownOnesNameTheNearest) {
    EXPECT_THAT(error_of([] { expand_tasks("hellaswagg"); }, ErrorCode::usage),
                HasSubstr("did you mean 'hellaswag'?"));
    EXPECT_THAT(
        error_of([] { load_task("zzz", {}); }, ErrorCode::usage),
        testing::AllOf(HasSubstr("there is no task 'zzz'; known: arc_challenge, "), HasSubstr(", mmlu, ")));
}

// A row of the table in docs/tasks.md, from the task file.
std::string table_row(const TaskFile& task, const std::string& name) {
    std::vector<std::string> places;
    for (const DataSource& source : task.data) {
        const std::string first = task.split.substr(0, task.split.find('+'));
        if (const auto files = source.files.find(first); files != source.files.end())
            places.push_back(fmt::format("`{}`", files->second[0]));
        if (!source.hub.empty()) places.push_back(fmt::format("hub: {}", source.hub));
    }
    if (places.empty()) places = {"generated"};
    return fmt::format("| `{}` | {} | {} | {} | {} | {} | {} |\n", name, task.about,
                       task.split.empty() ? "-" : task.split, join(task.spec.metrics, ", "), task.source,
                       task.licence, join(places, "; "));
}

TEST(TaskNames, TheDocumentationListsThem) {
    const std::string document = read_all(std::string(REFOLD_FIXTURES) + "/../../docs/tasks.md");
    std::string table;
    std::set<std::string> rows;  // one for all subjects of a group
    for (const BuiltinTaskFile& file : builtin_task_files()) {
        const bool subjects = file.text.find("\nsubjects:") != std::string_view::npos;
        for (const TaskFile& task : parse_task_file(std::string(file.text), std::string(file.name))) {
            const std::string& name = subjects ? task.spec.group : task.spec.name;
            if (rows.insert(name).second) table += table_row(task, name);
        }
    }
    EXPECT_NE(document.find(table), std::string::npos) << "docs/tasks.md must hold:\n" << table;
}

// ---- data ----

TEST(TaskData, AMissingFileIsNamedWithWhereToGetIt) {
    const TempFolder folder;
    const std::string text = error_of([&] { load("piqa", folder / ""); }, ErrorCode::io);
    EXPECT_THAT(text, HasSubstr("'piqa/valid.jsonl'"));
    EXPECT_THAT(text, HasSubstr("https://yonatanbisk.com/piqa"));
    EXPECT_THAT(error_of([&] { load("piqa", folder / "none"); }, ErrorCode::io), HasSubstr("is no folder"));
    const Environment offline{"HF_HUB_OFFLINE", "1"}, cache{"HF_HUB_CACHE", folder / ""},
        rows{"REFOLD_CACHE", folder / ""};
    EXPECT_THAT(error_of([] { load_task("axg", {}); }, ErrorCode::io), HasSubstr("HF_HUB_OFFLINE"));
    EXPECT_THAT(error_of([] { load_task("lambada_openai", {}); }, ErrorCode::io),
                HasSubstr("HF_HUB_OFFLINE"));
    EXPECT_THAT(error_of([&] { load_task("axg", {.data = kFolder, .shots = 3}); }, ErrorCode::usage),
                HasSubstr("has only 2 to choose from"));
    EXPECT_THAT(error_of([] { load_task("csl", {}); }, ErrorCode::usage), HasSubstr("--data DIR"));
}

TEST(TaskData, RowsOfTheHubInAFolder) {
    const TempFolder folder;
    std::filesystem::create_directories(folder / "race/high");
    write_all(
        folder / "race/high/test.jsonl",
        R"({"article": "It rained.", "problems": "[{'question': \"What's it?\", 'answer': 'B', 'options': ['a', 'b', 'c', 'd']}, )"
        R"({'question': 'When  _  .', 'answer': 'D', 'options': ['in\\nMay', 'x', 'y', 'z']}]"})");
    const Task task = load("race_high", folder / "");
    EXPECT_EQ(task.items[0].prompts[0], "Article: It rained.\n\nQuestion: What's it?\nAnswer: b\nWhen  _  .");
    EXPECT_THAT(task.items[0].choices, ElementsAre("in\nMay", "x", "y", "z"));
    EXPECT_THAT(task.items[0].gold, ElementsAre(3));
}

// With the data sets themselves, if present: REFOLD_TASK_DATA=DIR refold_test_task_data.
TEST(TaskData, EveryTaskLoadsFromTheOriginals) {
    const char* const folder = getenv("REFOLD_TASK_DATA");
    if (folder == nullptr) GTEST_SKIP() << "REFOLD_TASK_DATA is not set";
    for (const std::string& name : task_names()) {
        if (expand_tasks(name) != std::vector{name}) continue;
        try {
            const Task task = load(name, folder);
            if (task.spec.group.empty())
                printf("%s: %zu items of %s\n", name.c_str(), task.items.size(), task.data_file.c_str());
        } catch (const Error& error) {
            // A folder need not have all data sets.
            if (error.code() != ErrorCode::io) ADD_FAILURE() << name << ": " << error.what();
            if (find_task(name).spec.group.empty()) printf("%s: %s\n", name.c_str(), error.what());
        }
    }
}

class TaskLines : public testing::Test {
protected:
    // A task file with these lines as data.
    std::string error(const std::string& lines, const TaskOptions& options = {},
                      ErrorCode code = ErrorCode::input) {
        write_all(folder_ / "items.jsonl", lines);
        TaskOptions with_data = options;
        with_data.data = folder_ / "";
        return error_of([&] { load_task(task(), with_data); }, code);
    }
    std::string task(const std::string& more = "") const {
        write_all(folder_ / "own.yaml", R"(
task: own
output: multiple_choice
metrics: [acc]
split: test
data: [{files: {test: items.jsonl}}]
prompt: "{{q}}"
choices: ["yes", "no"]
gold: "{{a}}"
)" + more);
        return folder_ / "own.yaml";
    }
    TempFolder folder_;
};

TEST_F(TaskLines, ATaskOfOnesOwn) {
    write_all(
        folder_ / "items.jsonl",
        "{\"q\": \"Is it?\", \"a\": \"no\"}\r\n\n{\"q\": \"1\", \"a\": 0}\n{\"q\": \"2\", \"a\": false}");
    const Task task = load_task(this->task(), {.data = folder_ / ""});
    ASSERT_EQ(task.items.size(), 3u);
    EXPECT_THAT(task.items[0].gold, ElementsAre(1));
    EXPECT_THAT(task.items[1].gold, ElementsAre(0));
    EXPECT_THAT(task.items[2].gold, ElementsAre(0));
    EXPECT_EQ(task.items[1].prompts[0], "1");
    EXPECT_EQ(task.items[0].doc.dump(), R"({"q":"Is it?","a":"no"})");
    EXPECT_EQ(task.data_file, folder_ / "items.jsonl");
    EXPECT_EQ(task.data_sha256.size(), 64u);
    EXPECT_EQ(task.original, 3);
    EXPECT_EQ(load_task(this->task(), {.data = folder_ / "", .limit = 2}).items.size(), 2u);
    EXPECT_EQ(load_task(this->task(), {.data = folder_ / "", .limit = 2}).original, 3);
}

TEST_F(TaskLines, IntegersHaveTheDigitsOfTheFile) {
    constexpr const char* kNumber = "123456789012345678901234567890";
    write_all(folder_ / "items.jsonl", fmt::format(R"({{"q": {}, "a": 0}})", kNumber));
    const Task task = load_task(this->task(), {.data = folder_ / ""});
    EXPECT_EQ(task.items[0].prompts[0], kNumber);
    EXPECT_THAT(error(fmt::format(R"({{"q": 1, "a": {}}})", kNumber)),
                HasSubstr(std::string("got ") + kNumber));
}

TEST_F(TaskLines, VariantsReplaceKeys) {
    write_all(folder_ / "items.jsonl", "{\"q\": \"Is it?\", \"a\": \"no\"}\n{\"q\": \"b\", \"a\": 0}");
    const std::string path = task("aliases: [mine]\nvariants: {loud: {prompt: \"{{q}}!\", last: 0.5}}");
    EXPECT_THAT(expand_tasks(path), ElementsAre(path + "#own", path + "#loud"));
    EXPECT_EQ(load_task(path + "#own", {.data = folder_ / ""}).items[0].prompts[0], "Is it?");
    const Task loud = load_task(path + "#loud", {.data = folder_ / ""});
    ASSERT_EQ(loud.items.size(), 1u);
    EXPECT_EQ(loud.items[0].prompts[0], "b!");
    EXPECT_TRUE(find_task(path + "#loud").aliases.empty());
}

TEST(LoadTask, NamesWhatBelongsToTheData) {
    TempFolder folder;
    std::filesystem::create_directory(folder / "piqa");
    std::filesystem::copy_file(kFolder + "/piqa/valid.jsonl", folder / "piqa/valid.jsonl");
    EXPECT_THAT(
        error_of([&] { load_task("piqa", {.data = folder / ""}); }, ErrorCode::io),
        testing::AllOf(HasSubstr("lacks 'piqa/valid-labels.lst'"), HasSubstr("get it from https://")));
}

// Subjects from one archive: it is hashed for the first subject only.
TEST(LoadTask, HashesAFileOnce) {
    DataHashes hashes;
    TaskOptions options{.data = kFolder};
    options.hashes = &hashes;
    const Task first = load_task("mmlu_anatomy", options);
    EXPECT_EQ(hashes.hashed(), 1u);
    EXPECT_EQ(load_task("mmlu_abstract_algebra", options).data_sha256, first.data_sha256);
    EXPECT_EQ(hashes.hashed(), 1u);
    load_task("piqa", options);
    EXPECT_EQ(hashes.hashed(), 2u);
    EXPECT_EQ(load_task("mmlu_anatomy", {.data = kFolder}).data_sha256, first.data_sha256);
}

TEST(LoadTask, ExamplesOfAnotherFileAreHashedToo) {
    const Task piqa = load_task("piqa", {.data = kFolder, .shots = 1});
    EXPECT_EQ(piqa.fewshot_file, kFolder + "/piqa/train.jsonl");
    EXPECT_EQ(piqa.fewshot_sha256.size(), 64u);
    EXPECT_NE(piqa.fewshot_sha256, piqa.data_sha256);
    EXPECT_EQ(load_task("mmlu_anatomy", {.data = kFolder, .shots = 1}).fewshot_file, "");
    EXPECT_EQ(load_task("piqa", {.data = kFolder}).fewshot_file, "");
}

TEST_F(TaskLines, BrokenOnesAreNamed) {
    EXPECT_THAT(error("{\"q\": \"a\", \"a\": 0}\n\n{\"q\": \n"),
                HasSubstr("items.jsonl line 3: not valid JSON"));
    EXPECT_THAT(error("{\"q\": \"a\", \"a\": 0}\n[1]"),
                HasSubstr("line 2: expected a JSON object, got array"));
    EXPECT_THAT(error("{\"q\": \"\xff\"}"), HasSubstr("line 1: not UTF-8"));
    EXPECT_THAT(error("\n\n"), HasSubstr("no items"));
    EXPECT_THAT(error("{\"q\": \"a\", \"a\": 2}"),
                HasSubstr("line 1: [task] the item has no right choice: got 2"));
    EXPECT_THAT(error("{\"q\": \"a\", \"a\": \"maybe\"}"), HasSubstr("no right choice: got \"maybe\""));
    EXPECT_THAT(error("{\"q\": \"a\", \"a\": null}"), HasSubstr("no right choice: got null"));
    EXPECT_THAT(error("{\"q\": \"a\", \"a\": []}"), HasSubstr("no right choice"));
    EXPECT_THAT(error("{\"a\": 0}"), HasSubstr("items.jsonl line 1: [template] '{{q}}'"));
    EXPECT_THAT(error("{\"q\": " + std::string(100, '[') + std::string(100, ']') + "}"),
                HasSubstr("nested too deep"));
    EXPECT_THAT(error("{\"q\": \"a\", \"a\": 0}", {.shots = 2}, ErrorCode::usage),
                HasSubstr("has only 1 to choose from"));
    EXPECT_THAT(error("{\"q\": \"a\", \"a\": 0}", {.shots = -1}, ErrorCode::usage), HasSubstr("--shots"));
}

TEST_F(TaskLines, BrokenTaskFilesAreNamed) {
    const auto error = [&](const std::string& more, ErrorCode code) {
        return error_of([&] { expand_tasks(task(more)); }, code);
    };
    EXPECT_THAT(error("promt: x", ErrorCode::usage),
                HasSubstr("own.yaml line 10: unknown key 'promt'; did you mean 'prompt'?"));
    EXPECT_THAT(error("gold: x", ErrorCode::input), HasSubstr("line 10: key 'gold' is given twice"));
    EXPECT_THAT(error("generation: {max_tokens: many}", ErrorCode::usage),
                HasSubstr("line 10: expected a number"));
    EXPECT_THAT(error("last: 1.5", ErrorCode::usage), HasSubstr("line 10: expected a part"));
    EXPECT_THAT(error("consistent: {by: q}", ErrorCode::input), HasSubstr("line 10: 'consistent' needs"));
    EXPECT_THAT(error("needle: {haystack: hay}", ErrorCode::usage), HasSubstr("line 10: unknown word 'hay'"));
    EXPECT_THAT(error("needle: {asked: 17}", ErrorCode::usage), HasSubstr("line 10: expected 1 to 16"));
    EXPECT_THAT(error("variants: [a]", ErrorCode::input), HasSubstr("line 10: 'variants' must map"));
    EXPECT_THAT(error("variants: {more: {promt: x}}", ErrorCode::usage),
                HasSubstr("line 10: unknown key 'promt'; did you mean 'prompt'?"));
    EXPECT_THAT(error("[", ErrorCode::input), HasSubstr("not valid YAML"));
    EXPECT_THAT(error("aliases: {a: b}", ErrorCode::input), HasSubstr("expected a list"));
    EXPECT_THAT(error("subgroups: {a: [b]}", ErrorCode::input), HasSubstr("line 10: 'subgroups' must map"));
    EXPECT_THAT(error("subgroups: {a: [c]}\nsubjects: {b: b}\ngroup: g", ErrorCode::input),
                HasSubstr("line 10: 'c' is none of the subjects"));
    write_all(folder_ / "own.yaml", "task: x\nmetrics: [acc]\noutput: guess\n");
    EXPECT_THAT(error_of([&] { expand_tasks(folder_ / "own.yaml"); }, ErrorCode::usage),
                HasSubstr("line 3: unknown output 'guess'"));
    write_all(folder_ / "own.yaml", "task: x\nmetrics: [acc]\noutput: loglikelihood\nprompt: x\n");
    EXPECT_THAT(error_of([&] { expand_tasks(folder_ / "own.yaml"); }),
                HasSubstr("the key 'target' is missing"));
    error_of([&] { load_task(folder_ / "none.yaml", {}); }, ErrorCode::io);
}

TEST_F(TaskLines, BrokenTemplatesAreNamed) {
    write_all(folder_ / "items.jsonl", "{\"q\": \"a\", \"a\": 0}");
    const std::string path = task();
    std::string text = read_all(path);
    text.replace(text.find("{{q}}"), 5, "{{q");
    write_all(path, text);
    EXPECT_THAT(error_of([&] { load_task(path, {.data = folder_ / ""}); }), HasSubstr("[template] '{{q'"));
}

TEST_F(TaskLines, ExamplesFromTheSplitItselfLeaveOutTheItem) {
    write_all(folder_ / "items.jsonl",
              "{\"q\": \"a\", \"a\": 0}\n{\"q\": \"b\", \"a\": 0}\n{\"q\": \"a\", \"a\": 0}\n{\"q\": \"c\", "
              "\"a\": 1}");
    for (const char* first : {"true", "false"}) {
        const std::string path = task(fmt::format("fewshot: {{exclude_item: true, first: {}}}\n", first));
        // Draws many times, so that an example that equals the item would show up.
        for (uint64_t seed = 0; seed < 20; ++seed) {
            const Task task = load_task(path, {.data = folder_ / "", .shots = 2, .seed = seed});
            for (const TaskItem& item : task.items) {
                ASSERT_EQ(item.shots.size(), 2u);
                for (const FewShot& shot : item.shots) EXPECT_NE(shot.prompt, item.prompts[0]);
            }
        }
    }
}

}  // namespace
}  // namespace refold
