// One table of each paper as it stands in papers/, all rows on a small model.
#include <regex>

#include "cli/random_model.h"
#include "cli/refold.h"

namespace refold {
namespace {

using nlohmann::json;

struct SmallTable {
    friend void PrintTo(const SmallTable& shown, std::ostream* out) { *out << shown.table; }

    const char* table;
    json model;  // values of config.json
    size_t rows = 0, published = 0;
    size_t planned = 0;  // of the published numbers, those that follow from the configuration
};

class PaperTables : public testing::TestWithParam<SmallTable> {
protected:
    PaperTables() {
        write_random_model(folder / "small.gguf", GetParam().model);
        write_data();
        write_texts();
    }
    // The samples of paper 004.
    void write_texts() const {
        std::filesystem::create_directories(folder / "texts/uniattn-sft");
        json records;
        for (const char* text : {"the cat sat on the mat", "one two three four", "a dog lay by the door"})
            records.push_back({{"instruction", text}, {"output", "yes"}});
        for (const char* name : {"pmc_llama_instructions_1000", "infinity_instruct_math_1000",
                                 "tulu3_sft_filtered_1000", "f15k"})
            write_all(folder / ("texts/uniattn-sft/" + std::string(name) + ".json"), records.dump());
    }
    // Small task data, with the splits of paper 003.
    void write_data() const {
        std::filesystem::copy(kFixtures + "/tasks", folder / "data",
                              std::filesystem::copy_options::recursive);
        std::filesystem::create_directories(folder / "data/bigbench/qa_wikidata");
        std::string claims, facts;
        for (const char* word : {"one", "two", "three", "four", "five", "six", "seven", "eight"}) {
            claims += json{{"label", "SUPPORTS"}, {"claim", word}}.dump() + "\n";
            facts += json{{"inputs", word}, {"targets", json::array({"number"})}}.dump() + "\n";
        }
        write_all(folder / "data/fever/paper_test.jsonl", claims);
        for (const char* split : {"train", "validation"})
            write_all(folder / ("data/bigbench/qa_wikidata/" + std::string(split) + ".jsonl"), facts);
    }
    json reproduced() {
        const Outcome done =
            refold({"reproduce", std::string("papers/") + GetParam().table + ".yaml", "--model",
                    folder / "small.gguf", "--data", folder / "data", "--texts", folder / "texts", "--limit",
                    "2", "--threads", "1", "--work", folder / "work", "--quiet", "--json"});
        messages = done.err;
        return json::parse(done.out, nullptr, false);
    }
    std::string messages;
    const TempFolder folder;
};

TEST_P(PaperTables, EveryMeasurableColumnHasANumber) {
    const json first = reproduced();
    ASSERT_EQ(first["rows"].size(), GetParam().rows) << messages;
    size_t published = 0;
    for (const json& row : first["rows"]) {
        for (const json& cell : row["cells"]) {
            if (cell["published"].is_null()) continue;
            ASSERT_TRUE(cell["here"].is_number()) << row["row"] << cell << messages;
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
    {"004/table-11", {{"num_hidden_layers", 6}}, 4, 20},
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
