// The files of papers/.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "core/error.h"
#include "model/load.h"
#include "papers/paper_result.h"
#include "papers/planned_number.h"
#include "tasks/load_task.h"

namespace refold {
namespace {

const std::vector<PaperTable>& tables() {
    static const auto all = read_paper_tables(std::string(REFOLD_FIXTURES) + "/../../papers");
    return all;
}

// What the papers print: tables and figures are numbered from 1. Texts are numbers that only the text has.
TEST(Papers, EveryTableAndFigureHasItsFile) {
    struct Count {
        int tables, figures, texts;
    };
    const std::map<std::string, Count> counts = {
        {"000", {21, 7, 0}}, {"001", {19, 17, 0}}, {"003", {4, 2, 0}}, {"004", {13, 7, 2}}};
    std::set<std::string> wanted, found;
    for (const auto& [paper, count] : counts) {
        for (int i = 1; i <= count.tables; ++i) wanted.insert(paper + "/table-" + std::to_string(i));
        for (int i = 1; i <= count.figures; ++i) wanted.insert(paper + "/figure-" + std::to_string(i));
        for (int i = 1; i <= count.texts; ++i) wanted.insert(paper + "/text-" + std::to_string(i));
    }
    for (const PaperTable& table : tables())
        found.insert(table.paper + "/" + std::filesystem::path(table.path).stem().string());
    EXPECT_EQ(found, wanted);
}

class EachPaperTable : public testing::TestWithParam<size_t> {
protected:
    const PaperTable& table() const { return tables()[GetParam()]; }
};

// Every recipe can be applied to its model, and what follows from configurations is as printed, or the file
// says why not.
TEST_P(EachPaperTable, PlansAndAccounts) {
    SCOPED_TRACE(table().path);
    std::map<std::string, Model> models;
    for (const PaperRow& row : table().rows) {
        SCOPED_TRACE(row.name);
        if (!models.contains(row.model))
            models.emplace(row.model, load_model(paper_model_config(table(), row.model)));
        if (!row.why.empty()) continue;
        const auto planned = planned_cells(table(), row, models.at(row.model), row.recipe);
        for (size_t c = 0; c < table().columns.size(); ++c) {
            const PaperColumn& column = table().columns[c];
            if (!planned[c] || row.published[c].empty()) continue;
            const double here = *planned[c];
            EXPECT_NE(equal_as_printed(row.published[c], here), row.misprints.contains(column.name))
                << column.name << ": published " << row.published[c] << ", here " << here;
        }
    }
}

TEST_P(EachPaperTable, TasksExist) {
    const auto names = task_names();
    for (const PaperColumn& column : table().columns) {
        if (column.measure != PaperMeasure::task) continue;
        EXPECT_FALSE(expand_tasks(column.task).empty()) << table().path << ": " << column.task;
    }
}

INSTANTIATE_TEST_SUITE_P(Papers, EachPaperTable, testing::Range<size_t>(0, tables().size()),
                         [](const auto& test) {
                             const PaperTable& table = tables()[test.param];
                             std::string name = "Paper" + table.paper + "_" +
                                                std::filesystem::path(table.path).stem().string();
                             std::ranges::replace(name, '-', '_');
                             return name;
                         });

}  // namespace
}  // namespace refold
