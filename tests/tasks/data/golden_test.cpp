// Requests to a model, compared with lm-evaluation-harness's requests on the same samples
// (tests/tools/make_task_goldens.py).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/temp_folder.h"
#include "tasks/load_task.h"

namespace refold {
namespace {

using Json = nlohmann::json;

const std::string kFolder = std::string(REFOLD_FIXTURES) + "/tasks";

Json goldens() { return Json::parse(read_all(kFolder + "/golden.json")); }

std::vector<std::string> contexts(const Task& task, const TaskItem& item) {
    std::string before = task.spec.description;
    for (const FewShot& shot : item.shots)
        before += shot.prompt + task.spec.target_delimiter + shot.target + task.spec.fewshot_delimiter;
    std::vector<std::string> out;
    for (const std::string& prompt : item.prompts) out.push_back(before + prompt);
    return out;
}

std::vector<std::string> continuations(const Task& task, const TaskItem& item) {
    const bool delimited = task.spec.output != TaskOutput::loglikelihood;
    std::vector<std::string> out;
    for (const std::string& choice : item.choices)
        out.push_back((delimited ? task.spec.target_delimiter : "") + choice);
    return out;
}

TEST(TaskGolden, AsksWhatLmEvaluationHarnessAsks) {
    for (const Json& golden : goldens()) {
        const std::string name = golden["task"];
        SCOPED_TRACE(name + " from " + golden["data"].get<std::string>() +
                     ", shots: " + golden["shots"].dump());
        const int64_t shots = golden["shots"];
        const Task task = load_task(name, {.data = kFolder + "/" + golden["data"].get<std::string>(),
                                           .limit = shots > 0 ? 3 : 20,
                                           .shots = shots});
        ASSERT_EQ(task.items.size(), golden["items"].size());
        for (size_t i = 0; i < task.items.size(); ++i) {
            SCOPED_TRACE("item " + std::to_string(i));
            const TaskItem& item = task.items[i];
            const Json& expected = golden["items"][i];
            EXPECT_EQ(item.doc_id, static_cast<int64_t>(i));
            EXPECT_EQ(contexts(task, item), expected["contexts"].get<std::vector<std::string>>());
            EXPECT_EQ(continuations(task, item), expected["continuations"].get<std::vector<std::string>>());
            if (expected.contains("gold")) {
                EXPECT_EQ(item.gold, std::vector<int64_t>{expected["gold"].get<int64_t>()});
            }
            if (expected.contains("reference")) {
                EXPECT_EQ(item.references,
                          std::vector<std::string>{expected["reference"].get<std::string>()});
            }
        }
    }
}

}  // namespace
}  // namespace refold
