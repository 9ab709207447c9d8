// Curves of training runs.
#include "report/training.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "core/error_of.h"
#include "core/temp_folder.h"
#include "report/collect.h"

namespace refold {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kMetrics =
    "{\"step\":0,\"held_out_loss\":4.5}\n"
    "{\"step\":1,\"gradient_norm\":1.5,\"learning_rate\":0.0001,\"loss\":4.25,\"tokens_per_s\":100,\"pairs\":"
    "0.5}\n"
    "{\"step\":2,\"gradient_norm\":1.25,\"learning_rate\":0.0002,\"loss\":null,\"tokens_per_s\":110,"
    "\"pairs\":0.25}\n"
    "{\"step\":3,\"gradient_norm\":1,\"learning_rate\":0.0001,\"loss\":3.5,\"tokens_per_s\":105,\"pairs\":0."
    "125}\n"
    "{\"step\":3,\"held_out_loss\":3.75}\n";

class Training : public testing::Test {
protected:
    std::string write(const std::string& name, const std::string& text) {
        std::filesystem::create_directories(std::filesystem::path(folder / name).parent_path());
        write_all(folder / name, text);
        return folder / name;
    }
    Comparison of(const std::vector<std::string>& paths) {
        Runs runs;
        for (const auto& path : paths) add_runs(path, "", runs);
        return collect(runs, {});
    }
    TempFolder folder;
};

const LinePlot& plot_of(const Figure& figure) { return std::get<LinePlot>(figure.chart); }

TEST_F(Training, AFigureForEveryKindOfValue) {
    write("run.train/metrics.jsonl", kMetrics);
    const Comparison c = of({folder / "run.train"});
    ASSERT_EQ(c.variants.size(), 1U);
    EXPECT_EQ(c.variants[0].name, "run");
    const auto figures = training_figures(c);
    std::vector<std::string> titles;
    for (const auto& figure : figures) titles.push_back(figure.title);
    EXPECT_THAT(titles, ElementsAre("Loss", "Learning rate", "Gradient", "Training speed", "Pairs"));
    const LinePlot& loss = plot_of(figures[0]);
    EXPECT_EQ(loss.y_axis, "loss (nats per token)");
    ASSERT_EQ(loss.lines.size(), 2U);
    EXPECT_EQ(loss.lines[0].name, "loss");
    EXPECT_THAT(loss.lines[0].x, ElementsAre(1, 2, 3));
    EXPECT_EQ(loss.lines[0].y[0], 4.25);
    EXPECT_TRUE(std::isnan(loss.lines[0].y[1]));
    EXPECT_EQ(loss.lines[1].name, "held-out loss");
    EXPECT_THAT(loss.lines[1].x, ElementsAre(0, 3));
    const std::string html = to_html(c);
    EXPECT_THAT(
        html, AllOf(HasSubstr("<h2>Training</h2>"), HasSubstr("loss (nats per token)"), HasSubstr("3.7500")));
    EXPECT_THAT(to_json(c), HasSubstr("\"held_out_loss\""));
    EXPECT_THAT(to_table(c), AllOf(HasSubstr("held-out loss"), HasSubstr("3.7500"), HasSubstr("3.5000")));
}

TEST_F(Training, RunsAreComparedAndStepsOfARecipeToldApart) {
    write("runs/a.train/step-1/metrics.jsonl", "{\"step\":1,\"loss\":2}\n");
    write("runs/a.train/step-3/metrics.jsonl", "{\"step\":1,\"loss\":3}\n");
    write("runs/b/metrics.jsonl", "{\"step\":1,\"loss\":4}\n");
    const std::string other = write("other.jsonl", "{\"step\":1,\"loss\":5}\n");
    const Comparison c = of({folder / "runs", other});
    std::vector<std::string> names;
    const auto figures = training_figures(c);
    for (const auto& line : plot_of(figures[0]).lines) names.push_back(line.name);
    EXPECT_THAT(names, ElementsAre("a, step-1: loss", "a, step-3: loss", "b: loss", "other: loss"));
}

TEST_F(Training, ARunBelongsToTheModelOfItsName) {
    std::filesystem::copy_file(std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf", folder / "small.gguf");
    write("small.train/step-2/metrics.jsonl", kMetrics);
    const Comparison c = of({folder / ""});
    ASSERT_EQ(c.variants.size(), 1U);
    EXPECT_EQ(c.variants[0].file, "small.gguf");
    EXPECT_EQ(c.variants[0].training.size(), 1U);
}

TEST_F(Training, LongRunsAreDrawnAsMeans) {
    std::string text;
    for (int step = 1; step <= 1000; ++step)
        text += fmt::format("{{\"step\":{},\"loss\":{}}}\n", step, step % 2 == 0 ? 1 : 3);
    write("run/metrics.jsonl", text);
    const auto figures = training_figures(of({folder / "run"}));
    const Line& line = plot_of(figures[0]).lines[0];
    EXPECT_LE(line.x.size(), 96U);
    EXPECT_EQ(line.x[0], 6);
    EXPECT_THAT(line.y[0], testing::DoubleNear(2, 0.1));
    EXPECT_THAT(figures[0].caption, HasSubstr("means of up to 11 steps"));
}

TEST_F(Training, ALineThatIsStillWrittenIsLeftOut) {
    const RunResult run = parse_training("{\"step\":1,\"loss\":2}\n{\"step\":2,\"lo", "x/metrics.jsonl");
    EXPECT_EQ(run.variant.training[0].curves[0].steps.size(), 1U);
    EXPECT_EQ(parse_training("{\"step\":1,\"loss\":2}", "x/metrics.jsonl").variant.name, "x");
}

TEST_F(Training, MalformedMetricsAreNamed) {
    const auto problem = [](const std::string& text) {
        return error_of([&] { parse_training(text, "x/metrics.jsonl"); });
    };
    EXPECT_THAT(problem("{\"step\":1,\"loss\":2}\n{\"step\":2,\n"),
                HasSubstr("'x/metrics.jsonl', line 2: no valid JSON"));
    EXPECT_THAT(problem("{\"loss\":2}\n"), HasSubstr("line 1: no 'step'"));
    EXPECT_THAT(problem("{\"step\":1,\"loss\":\"2\"}\n"),
                HasSubstr("line 1: 'loss' is string, expected a number"));
    EXPECT_THAT(problem("[1]\n"), HasSubstr("line 1: got array"));
    EXPECT_THAT(problem(""), HasSubstr("no steps of training"));
    // A run that cannot be read is an error, whether named or in a directory.
    write("run/metrics.jsonl", "{}\n");
    EXPECT_THAT(error_of([&] { of({folder / "run"}); }), HasSubstr("line 1: no 'step'"));
}

}  // namespace
}  // namespace refold
