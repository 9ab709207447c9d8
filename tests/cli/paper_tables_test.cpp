// One table of each paper as it stands in papers/, all rows on a small model.
#include <regex>

#include "cli/random_model.h"
#include "cli/refold.h"

namespace refold {
namespace {

using nlohmann::json;

struct SmallTable {
    const char* table;
    json model;  // values of config.json
    size_t rows = 0, published = 0;
    size_t planned = 0;  // of the published numbers, those that follow from the configuration
};

class PaperTables : public testing::TestWithParam<SmallTable> {
protected:
    PaperTables() {
        std::filesystem::create_directories(folder / "texts/pmc-llama");
        write_random_text(folder / "texts/pmc-llama/instructions.txt", 1, 12000);
        write_random_model(folder / "small.gguf", GetParam().model);
    }
    json reproduced() const {
        return refold_json({"reproduce",      std::string("papers/") + GetParam().table + ".yaml",
                            "--model",        folder / "small.gguf",
                            "--data",         kFixtures + "/tasks",
                            "--texts",        folder / "texts",
                            "--calib",        folder / "texts/pmc-llama/instructions.txt",
                            "--calib-tokens", "1024",
                            "--limit",        "2",
                            "--max-windows",  "1",
                            "--threads",      "1",
                            "--quiet",        "--work",
                            folder / "work"});
    }
    const TempFolder folder;
};

TEST_P(PaperTables, EveryMeasurableColumnHasANumber) {
    const json first = reproduced();
    ASSERT_EQ(first["rows"].size(), GetParam().rows);
    size_t published = 0;
    for (const json& row : first["rows"]) {
        for (const json& cell : row["cells"]) {
            if (cell["published"].is_null()) continue;
            ASSERT_TRUE(cell["here"].is_number()) << row["row"] << cell;
            EXPECT_NEAR(cell["difference"].get<double>(),
                        cell["here"].get<double>() - cell["published"].get<double>(), 1e-12);
            ++published;
        }
    }
    EXPECT_EQ(published, GetParam().published);
    // What is known is not measured again: the second run shows what the file says.
    const std::string path = folder / "work/numbers.jsonl";
    const std::string known = read_all(path);
    write_all(path, std::regex_replace(known, std::regex("\"number\":[^}]*"), "\"number\":0.125"));
    const json second = reproduced();
    size_t reused = 0;
    for (const json& row : second["rows"])
        for (const json& cell : row["cells"])
            reused += !cell["published"].is_null() && (cell["here"] == 0.125 || cell["here"] == 12.5) ? 1 : 0;
    EXPECT_EQ(reused, GetParam().published - GetParam().planned);
    EXPECT_EQ(second["commands"], first["commands"]);
}

const SmallTable kTables[] = {
    {"000/table-5", {{"num_hidden_layers", 4}}, 6, 12},
    {"001/table-3", {{"num_hidden_layers", 1}}, 1, 9, 1},
    // Ranks of RoBERTa base: its width and head size.
    {"003/table-2",
     {{"num_hidden_layers", 1},
      {"hidden_size", 768},
      {"num_attention_heads", 12},
      {"num_key_value_heads", 12}},
     5,
     20,
     4},
    // Superblocks in the last 16 layers.
    {"004/table-13", {{"num_hidden_layers", 16}, {"hidden_size", 16}, {"intermediate_size", 16}}, 8, 8},
};

INSTANTIATE_TEST_SUITE_P(OneOfEachPaper, PaperTables, testing::ValuesIn(kTables),
                         [](const testing::TestParamInfo<SmallTable>& table) {
                             std::string name = table.param.table;
                             std::ranges::replace_if(
                                 name, [](char c) { return c == '/' || c == '-'; }, '_');
                             return name;
                         });

}  // namespace
}  // namespace refold
