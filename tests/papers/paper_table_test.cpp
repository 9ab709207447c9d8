#include "papers/paper_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/temp_folder.h"
#include "papers/other_depth.h"

namespace refold {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kWhole = R"(
place: Table 7
section: "5.3"
title: something
needs: two GPUs
notes: [first, second]
columns:
  "#Params, B": {measure: parameters, scale: 1e-9}
  text: {measure: perplexity, text: wiki/test.txt}
  PIQA: {measure: task, task: piqa, metric: acc, shots: 5, scale: 100}
  decode: {measure: command, command: "bench {model} --decode 8", value: /decode/tokens_per_s}
  memory: {why: of another program}
  both: {measure: mean, of: [text, PIQA]}
rows:
  - {name: dense, model: llama2-7b, published: ["6.74", "", "78.1", "1", "17826", ""]}
  - name: shared
    model: llama2-7b
    steps: [{method: direct_share, ratio: 0.3}]
    for: {small: [{method: direct_share, ratio: 0.1}]}
    kv_budget: 0.8
    options: [--f32]
    misprints: {"#Params, B": of rounded numbers}
  - {name: trained, model: llama2-13b, why: the text is not published}
)";

class PaperTables : public testing::Test {
protected:
    PaperTable read(const std::string& text) {
        std::filesystem::create_directories(folder / "000");
        write_all(folder / "000/table-7.yaml", text);
        return read_paper_table(folder / "000/table-7.yaml");
    }
    // The message of the error of a file in which `from` is replaced.
    std::string error_of(const std::string& from, const std::string& to) {
        std::string text = kWhole;
        const size_t at = text.find(from);
        EXPECT_NE(at, std::string::npos) << from;
        text.replace(at, from.size(), to);
        try {
            read(text);
        } catch (const Error& error) {
            return error.what();
        }
        return "no error";
    }
    TempFolder folder;
};

TEST_F(PaperTables, AllKeysAreRead) {
    const PaperTable table = read(kWhole);
    EXPECT_EQ(table.paper, "000");
    EXPECT_EQ(table.place, "Table 7");
    EXPECT_EQ(table.section, "5.3");
    EXPECT_EQ(table.needs, "two GPUs");
    EXPECT_THAT(table.notes, ElementsAre("first", "second"));
    ASSERT_EQ(table.columns.size(), 6U);
    EXPECT_THAT(table.columns[5].of, ElementsAre("text", "PIQA"));
    EXPECT_EQ(table.columns[0].measure, PaperMeasure::planned);
    EXPECT_EQ(table.columns[0].scale, 1e-9);
    EXPECT_EQ(table.columns[1].text, "wiki/test.txt");
    EXPECT_EQ(table.columns[2].shots, 5);
    EXPECT_THAT(table.columns[3].words, ElementsAre("bench", "{model}", "--decode", "8"));
    EXPECT_EQ(table.columns[4].why, "of another program");
    ASSERT_EQ(table.rows.size(), 3U);
    EXPECT_THAT(table.rows[0].published, ElementsAre("6.74", "", "78.1", "1", "17826", ""));
    EXPECT_FALSE(table.rows[0].recipe);
    EXPECT_EQ(table.rows[1].recipe_for("llama2-7b")->steps[0].options.number("ratio"), 0.3);
    EXPECT_EQ(table.rows[1].recipe_for("small")->steps[0].options.number("ratio"), 0.1);
    EXPECT_EQ(table.rows[1].kv_budget, 0.8);
    EXPECT_EQ(table.rows[1].misprints.at("#Params, B"), "of rounded numbers");
    EXPECT_EQ(table.rows[2].why, "the text is not published");
    EXPECT_THAT(table.models(), ElementsAre("llama2-7b", "llama2-13b"));
    EXPECT_FALSE(table.planned());
    EXPECT_FALSE(table.trains());
    EXPECT_FALSE(table.calibrates());
}

TEST_F(PaperTables, BadFilesAreNamedWithTheirLine) {
    EXPECT_THAT(error_of("place:", "plase:"),
                HasSubstr("table-7.yaml line 2: unknown key 'plase'; did you mean 'place'"));
    EXPECT_THAT(error_of("measure: parameters,", "measure: parametrs,"),
                HasSubstr("line 8: unknown measure 'parametrs'; did you mean 'parameters'"));
    EXPECT_THAT(error_of("measure: perplexity, text: wiki/test.txt", "measure: perplexity"),
                HasSubstr("column 'text' needs 'text'"));
    EXPECT_THAT(error_of(", value: /decode/tokens_per_s", ""), HasSubstr("JSON pointer"));
    EXPECT_THAT(error_of("of: [text, PIQA]", "of: [text, QA]"),
                HasSubstr("there is no column 'QA' before 'both'"));
    EXPECT_THAT(error_of("{why: of another program}", "{}"), HasSubstr("column 'memory' needs 'measure'"));
    EXPECT_THAT(error_of("\"78.1\"", "\"78.1%\""), HasSubstr("line 15: '78.1%' is not a number"));
    EXPECT_THAT(error_of(", \"17826\"", ""), HasSubstr("row 'dense' has 5 published numbers for 6 columns"));
    EXPECT_THAT(error_of("name: shared", "name: dense"), HasSubstr("there is a row 'dense' already"));
    EXPECT_THAT(error_of("ratio: 0.3", "rtio: 0.3"), HasSubstr("rtio"));
    EXPECT_THAT(error_of("{\"#Params, B\": of", "{Params: of"), HasSubstr("there is no column 'Params'"));
    EXPECT_THAT(error_of("section:", "why: nothing\nsection:"), HasSubstr("give columns and rows, or 'why'"));
    EXPECT_THAT(error_of("scale: 1e-9", "scale: 0"), HasSubstr("'scale' must be"));
    EXPECT_THAT(error_of("steps: [", "recipe: a.yaml\n    steps: ["), HasSubstr("a.yaml"));
}

TEST_F(PaperTables, OfAFolderInTheOrderOfTheirNumbers) {
    const auto add = [&](const std::string& name) {
        std::filesystem::create_directories(std::filesystem::path(folder / name).parent_path());
        write_all(folder / name, "place: " + name + "\ntitle: x\nwhy: a drawing\n");
    };
    for (const char* name :
         {"001/table-2.yaml", "000/table-10.yaml", "000/table-2.yaml", "000/figure-1.yaml"})
        add(name);
    std::vector<std::string> places;
    for (const PaperTable& table : read_paper_tables(folder / "")) places.push_back(table.place);
    EXPECT_THAT(places, ElementsAre("000/figure-1.yaml", "000/table-2.yaml", "000/table-10.yaml",
                                    "001/table-2.yaml"));
    EXPECT_THROW(read_paper_tables(folder / "002"), Error);
}

Recipe uniattn(const std::string& superblocks) {
    return parse_recipe("steps: [{method: uniattn, superblocks: \"" + superblocks + "\"}]", "r");
}

// Layers count from the last one.
TEST(OtherDepth, LayersMoveWithTheEnd) {
    const auto moved = [](const std::string& blocks, size_t from, size_t to) {
        return for_depth(uniattn(blocks), from, to).steps[0].options.text("superblocks");
    };
    EXPECT_EQ(moved("16-19,28-31", 32, 30), "14-17,26-29");
    EXPECT_EQ(moved("16-19,28-31", 32, 42), "26-29,38-41");
    EXPECT_EQ(moved("", 32, 30), "");
    EXPECT_THROW(moved("1-2", 32, 30), Error);
    // Words stay, and so do numbers that are no layers.
    const Recipe drop = parse_recipe("steps: [{method: llmdrop, count: 8, layers: top half}]", "r");
    EXPECT_EQ(to_yaml(for_depth(drop, 32, 30)), to_yaml(drop));
}

}  // namespace
}  // namespace refold
