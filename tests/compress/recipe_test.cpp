#include "compress/recipe.h"

#include <filesystem>
#include <fstream>

#include "compress/registry.h"
#include "compress/small_model.h"

namespace refold {
namespace {

const Method kProbe = {
    "probe",
    "",
    "",
    "",
    {
        {"part", OptionSpec::Kind::number, "0.5", "", 0.0, 1.0},
        {"rank", OptionSpec::Kind::integer, "4", "", 1.0, 64.0},
        {"seed", OptionSpec::Kind::integer, "0", ""},
        {"deep", OptionSpec::Kind::boolean, "false", ""},
        {"start", OptionSpec::Kind::text, "", ""},
        {.name = "kind",
         .kind = OptionSpec::Kind::choice,
         .fallback = "mean",
         .help = "",
         .choices = {"mean", "median"},
         .former_names = {"sort", "art"},
         .former_choices = {{"average", "mean"}}},
    },
    nullptr,
};

Options options(std::vector<GivenOption> given) { return Options(kProbe, given); }

TEST(Options, DefaultsAndValues) {
    const Options defaults = options({});
    EXPECT_EQ(defaults.number("part"), 0.5);
    EXPECT_EQ(defaults.integer("rank"), 4);
    EXPECT_FALSE(defaults.boolean("deep"));
    EXPECT_EQ(defaults.text("kind"), "mean");
    const Options given = options({{"part", "1e-1", ""},
                                   {"rank", "64", ""},
                                   {"deep", "yes", ""},
                                   {"kind", "median", ""},
                                   {"seed", "-3", ""},
                                   {"start", "a b", ""}});
    EXPECT_EQ(given.number("part"), 0.1);
    EXPECT_EQ(given.integer("rank"), 64);
    EXPECT_EQ(given.integer("seed"), -3);
    EXPECT_TRUE(given.boolean("deep"));
    EXPECT_EQ(given.text("start"), "a b");
    EXPECT_EQ(given.entries()[0], (std::pair<std::string, std::string>{"part", "0.1"}));
    EXPECT_EQ(given.entries()[3], (std::pair<std::string, std::string>{"deep", "true"}));
}

TEST(Options, AskingForAnotherKindIsAMistakeOfOurs) {
    expect_error(ErrorCode::internal, {"part"}, [] { (void)options({}).integer("part"); });
    expect_error(ErrorCode::internal, {"none"}, [] { (void)options({}).text("none"); });
}

TEST(Options, WrongValuesAreUsageErrors) {
    const auto wrong = [](const std::string& name, const std::string& value, std::vector<std::string> parts) {
        parts.insert(parts.end(), {"probe", name, "'" + value + "'", "at place"});
        expect_error(ErrorCode::usage, parts, [&] { options({{name, value, "at place"}}); });
    };
    for (const char* value : {"1.5", "-0.1", "", "abc", "0.5x", " 0.5", "nan", "inf", "1e999"})
        wrong("part", value, {"number in [0, 1]"});
    for (const char* value : {"0", "65", "4.5", "", "99999999999999999999"})
        wrong("rank", value, {"integer in [1, 64]"});
    for (const char* value : {"maybe", "", "2"}) wrong("deep", value, {"true | false"});
    wrong("kind", "mediann", {"mean | median", "did you mean 'median'?"});
}

TEST(Options, UnknownAndRepeated) {
    expect_error(ErrorCode::usage, {"probe", "no option 'rnk'", "did you mean 'rank'?", "here"}, [] {
        options({{"rnk", "1", "here"}});
    });
    expect_error(ErrorCode::usage, {"probe", "'rank'", "twice"}, [] {
        options({{"rank", "1", ""}, {"rank", "2", ""}});
    });
}

TEST(Options, FormerNamesMeanThePresentOnes) {
    for (const char* name : {"kind", "sort", "art"})
        EXPECT_EQ(options({{name, "median", ""}}).text("kind"), "median");
    const Options former = options({{"sort", "average", ""}});
    EXPECT_EQ(former.text("kind"), "mean");
    EXPECT_EQ(former.entries()[5], (std::pair<std::string, std::string>{"kind", "mean"}));
    expect_error(ErrorCode::usage, {"'kind'", "given twice", "also as 'sort'", "here"}, [] {
        options({{"kind", "mean", ""}, {"sort", "mean", "here"}});
    });
    // Present names alone are offered.
    expect_error(ErrorCode::usage, {"mean | median"}, [] { options({{"kind", "averagee", ""}}); });
}

// What recipes, and the copies of recipes beside models, said in 2025.
TEST(Options, OldRecipesAreRead) {
    const Recipe recipe = parse_recipe(
        "steps:\n  - {method: train, data: a.txt, optimiser: adam}\n  - {method: laser, rho: 0.1, svd: "
        "randomised}\n",
        "old.yaml");
    EXPECT_EQ(recipe.steps[0].options.text("optimizer"), "adamw");
    EXPECT_EQ(recipe.steps[1].options.text("svd"), "randomized");
    const std::string now = to_yaml(recipe);
    EXPECT_NE(now.find("optimizer: adamw"), std::string::npos);
    EXPECT_NE(now.find("svd: randomized"), std::string::npos);
    EXPECT_EQ(to_yaml(parse_recipe(now, "new.yaml")), now);
    const std::vector<std::string> settings = {"data=a.txt", "optimiser=auto"};
    EXPECT_EQ(recipe_from_method("train", settings).steps[0].options.text("optimizer"), "adamw");
}

TEST(Methods, EveryMethodIsComplete) {
    EXPECT_GE(methods().size(), 22U);
    EXPECT_STREQ(methods().front()->name, "direct_share");
    for (const Method* method : methods()) {
        EXPECT_EQ(&find_method(method->name), method);
        EXPECT_STRNE(method->summary, "");
        EXPECT_STRNE(method->paper, "");
        EXPECT_STRNE(method->documentation, "");
        EXPECT_NE(method->apply, nullptr);
        for (const auto& option : method->options)
            EXPECT_FALSE(option.help.empty()) << method->name << " " << option.name;
        Options(*method, {});  // the defaults are valid
    }
    expect_error(ErrorCode::usage, {"directshare", "did you mean 'direct_share'?"},
                 [] { find_method("directshare"); });
}

TEST(Recipe, ReadsSteps) {
    const Recipe recipe = parse_recipe(
        "model: some/file.gguf\nsteps:\n  - method: direct_share\n    ratio: 0.1\n  - {method: direct_share, "
        "share: qkv, chain: one-hop}\n",
        "r.yaml");
    EXPECT_EQ(recipe.model, "some/file.gguf");
    ASSERT_EQ(recipe.steps.size(), 2U);
    EXPECT_EQ(recipe.steps[0].options.number("ratio"), 0.1);
    EXPECT_EQ(recipe.steps[0].options.text("share"), "qkvo");
    EXPECT_EQ(recipe.steps[1].options.number("ratio"), 0.3);
    EXPECT_EQ(recipe.steps[1].options.text("share"), "qkv");
    EXPECT_EQ(recipe.steps[1].options.text("chain"), "one-hop");
}

TEST(Recipe, EchoHasEveryOptionAndReadsBack) {
    const std::vector<std::string> settings = {"ratio=0.25"};
    const Recipe recipe = recipe_from_method("direct_share", settings);
    const std::string yaml = to_yaml(recipe);
    EXPECT_EQ(yaml,
              "steps:\n  - method: direct_share\n    ratio: 0.25\n    match: qk\n    share: qkvo\n    keep: "
              "former\n"
              "    chain: root\n    layers: all\n    matching: model\n    seed: 0\n    metric: weights\n"
              "    align: none\n    select: similarity\n");
    EXPECT_EQ(to_yaml(parse_recipe(yaml, "echo")), yaml);
    const Recipe named = parse_recipe("model: 'a: b # c'\nsteps: [{method: direct_share}]", "r");
    EXPECT_EQ(parse_recipe(to_yaml(named), "echo").model, "a: b # c");
}

TEST(Recipe, WrongRecipesSayWhatAndWhere) {
    const auto wrong = [](const char* text, ErrorCode code, std::vector<std::string> parts) {
        parts.emplace_back("r.yaml");
        expect_error(code, parts, [&] { parse_recipe(text, "r.yaml"); });
    };
    wrong("", ErrorCode::input, {"empty"});
    wrong("just words", ErrorCode::input, {"mapping"});
    wrong("- method: direct_share", ErrorCode::input, {"mapping"});
    wrong("steps: [\n", ErrorCode::input, {"not valid YAML", "line"});
    wrong("steps:\n\t- method: x", ErrorCode::input, {"not valid YAML", "line 2"});
    wrong("a: 1\n---\nb: 2\n", ErrorCode::input, {"one YAML document"});
    wrong("    a: 1\nb: 2\n", ErrorCode::input, {"one YAML document", "indented less"});
    wrong("model: x\n", ErrorCode::input, {"'steps' is missing"});
    wrong("steps: []\n", ErrorCode::input, {"at least one", "line 1"});
    wrong("steps:\n", ErrorCode::input, {"at least one"});
    wrong("steps: direct_share\n", ErrorCode::input, {"list"});
    wrong("steps:\n  - direct_share\n", ErrorCode::input, {"line 2", "'method'"});
    wrong("steps:\n  - ratio: 0.1\n", ErrorCode::input, {"line 2", "'method'"});
    wrong("steps:\n  - method: direct_share\nsteps:\n  - method: direct_share\n", ErrorCode::input,
          {"'steps'", "twice", "line 3"});
    wrong("steps:\n  - method: direct_share\n    ratio: 0.1\n    ratio: 0.2\n", ErrorCode::input,
          {"'ratio'", "twice", "line 4"});
    wrong("steps:\n  - method: direct_share\n    ratio: [0.1]\n", ErrorCode::input,
          {"'ratio'", "single value", "line 3"});
    wrong("steps:\n  - method: direct_share\n    ratio:\n", ErrorCode::input, {"'ratio'", "single value"});
    wrong("steps:\n  - method: direct_share\n    ? [a]\n    : 1\n", ErrorCode::input, {"key", "line 3"});
    wrong("model: [a]\nsteps:\n  - method: direct_share\n", ErrorCode::input,
          {"'model'", "single value", "line 1"});
    wrong("stepps:\n  - method: direct_share\n", ErrorCode::usage,
          {"unknown key 'stepps'", "did you mean 'steps'?", "line 1"});
    wrong("steps:\n  - method: directshare\n", ErrorCode::usage,
          {"unknown method 'directshare'", "did you mean 'direct_share'?", "line 2"});
    wrong("steps:\n  - method: direct_share\n    ratios: 0.1\n", ErrorCode::usage,
          {"direct_share", "'ratios'", "did you mean 'ratio'?", "line 3"});
    wrong("steps:\n  - method: direct_share\n    ratio: 1.5\n", ErrorCode::usage,
          {"direct_share", "'ratio'", "'1.5'", "[0, 1]", "line 3"});
    wrong("steps:\n  - method: direct_share\n    match: kq\n", ErrorCode::usage,
          {"'match'", "'kq'", "qk | q | k | v | qkv", "line 3"});
    wrong("calibration: text.txt\nsteps:\n  - method: refit\n", ErrorCode::input,
          {"calibration", "mapping", "line 1"});
    wrong("calibration:\n  tokens: 5\nsteps:\n  - method: refit\n", ErrorCode::input,
          {"needs the key 'text'"});
    wrong("calibration:\n  text: a.txt\n  token: 5\nsteps:\n  - method: refit\n", ErrorCode::usage,
          {"unknown key 'token'", "tokens", "line 3"});
    wrong("calibration:\n  text: a.txt\n  tokens: many\nsteps:\n  - method: refit\n", ErrorCode::usage,
          {"number of tokens", "line 3"});
    wrong("calibration:\n  text: a.txt\nsteps:\n  - method: direct_share\n", ErrorCode::usage,
          {"no step of this recipe uses 'calibration'"});
}

TEST(Recipe, OneOrSeveralCalibrationTexts) {
    const std::string step = "steps:\n  - method: refit\n";
    for (const auto& [yaml, texts] : std::map<std::string, std::vector<std::string>>{
             {"calibration: {text: a.txt}\n", {"a.txt"}},
             {"calibration: {text: [a.txt, \"b, c.txt\"]}\n", {"a.txt", "b, c.txt"}}}) {
        const Recipe recipe = parse_recipe(yaml + step, "r.yaml");
        EXPECT_EQ(recipe.calibration_texts, texts);
        EXPECT_EQ(parse_recipe(to_yaml(recipe), "r.yaml").calibration_texts, texts);
    }
    expect_error(ErrorCode::input, {"'calibration' needs the key 'text'"},
                 [&] { parse_recipe("calibration: {text: []}\n" + step, "r.yaml"); });
    expect_error(ErrorCode::input, {"'text'", "single value"},
                 [&] { parse_recipe("calibration: {text: [[a]]}\n" + step, "r.yaml"); });
}

TEST(Recipe, DeepNestingAndAliasesAreErrorsNotCrashes) {
    expect_error(ErrorCode::input, {"r.yaml"}, [] { parse_recipe(std::string(100000, '['), "r.yaml"); });
    expect_error(ErrorCode::input, {"r.yaml"}, [] { parse_recipe("steps: *nothing\n", "r.yaml"); });
}

// mergekit's own example of a passthrough merge, with one model.
TEST(Recipe, PassthroughMergesAreRepeatedLayers) {
    const std::string merge = R"(
slices:
  - sources:
    - model: ./small
      layer_range: [0, 3]
  - sources:
    - model: ./small
      layer_range: [1, 4]
merge_method: passthrough
dtype: bfloat16
)";
    const Recipe recipe = parse_recipe(merge, "merge.yaml");
    EXPECT_EQ(recipe.model, "./small");
    ASSERT_EQ(recipe.steps.size(), 1U);
    EXPECT_EQ(recipe.steps[0].method->name, std::string("repeat"));
    EXPECT_EQ(recipe.steps[0].options.text("layers"), "0-2,1-3");
    EXPECT_EQ(to_yaml(parse_recipe(to_yaml(recipe), "again.yaml")), to_yaml(recipe));
    const auto error = [&](const std::string& from, const std::string& to) -> std::string {
        std::string text = merge;
        text.replace(text.rfind(from), from.size(), to);
        try {
            parse_recipe(text, "merge.yaml");
        } catch (const Error& e) {
            return e.what();
        }
        return "no error";
    };
    EXPECT_NE(error("./small", "./other").find("one model with itself"), std::string::npos);
    EXPECT_NE(error("passthrough", "slerp").find("'slerp' is not supported"), std::string::npos);
    EXPECT_NE(error("[1, 4]", "[4, 1]").find("layer_range"), std::string::npos);
    EXPECT_NE(error("[1, 4]", "3").find("layer_range"), std::string::npos);
    EXPECT_NE(error("dtype", "parameters").find("parameters"), std::string::npos);
}

TEST(Recipe, CommandLine) {
    expect_error(ErrorCode::usage, {"--set", "'ratio'", "option=value"},
                 [] { recipe_from_method("direct_share", std::vector<std::string>{"ratio"}); });
    expect_error(ErrorCode::usage, {"--set", "'=1'"},
                 [] { recipe_from_method("direct_share", std::vector<std::string>{"=1"}); });
    expect_error(ErrorCode::usage, {"--method", "unknown method 'x'"}, [] { recipe_from_method("x", {}); });
    expect_error(ErrorCode::usage, {"--set", "'rtio'", "did you mean 'ratio'?"},
                 [] { recipe_from_method("direct_share", std::vector<std::string>{"rtio=1"}); });
}

TEST(Recipe, Files) {
    expect_error(ErrorCode::io, {"/no/such/recipe.yaml"}, [] { read_recipe("/no/such/recipe.yaml"); });
    const auto path = std::filesystem::temp_directory_path() / "refold_recipe_test.yaml";
    std::ofstream(path) << "steps:\n  - method: direct_share\n";
    EXPECT_EQ(read_recipe(path.string()).steps.size(), 1U);
    std::filesystem::remove(path);
}

}  // namespace
}  // namespace refold
