// Templates as Python's Jinja renders them (tests/tools/make_template_fixtures.py): equal, or refused.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "core/error.h"
#include "core/json_number.h"
#include "text/jinja.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

struct Outcome {
    int cases = 0, errors = 0, refused = 0;
};

// `errors`: what Python refuses as well; `refused`: what only refold does.
Outcome check_corpus(const std::string& name) {
    Outcome out;
    std::ifstream file(std::string(REFOLD_FIXTURES) + "/templates/" + name);
    for (std::string line; std::getline(file, line); ++out.cases) {
        const Json expected = parse_exact(line);
        const auto source = expected.at("template").get<std::string>();
        try {
            const JinjaTemplate jinja(source, {.keep_whitespace = expected.at("mode") == "task"});
            const std::string text = jinja.render(expected.at("context"));
            EXPECT_EQ(Json(text), expected.at("text")) << "case " << out.cases << ": " << source;
        } catch (const Error& error) {
            const bool both = expected.at("text").is_null();
            ++(both ? out.errors : out.refused);
            if (!both) std::cerr << "refused: case " << out.cases << ": " << error.what() << "\n";
        }
    }
    return out;
}

TEST(JinjaCorpus, GeneratedTemplates) {
    const Outcome outcome = check_corpus("generated.jsonl");
    EXPECT_EQ(outcome.cases, 500);
    EXPECT_LT(outcome.refused, 10);
    EXPECT_LT(outcome.errors, 100);  // most are rendered
}

TEST(JinjaCorpus, WrittenTemplates) {
    const Outcome outcome = check_corpus("written.jsonl");
    EXPECT_GT(outcome.cases, 150);
    EXPECT_EQ(outcome.refused, 2);  // methods that change a list or a mapping, which tasks have in Python
}

}  // namespace
}  // namespace refold
