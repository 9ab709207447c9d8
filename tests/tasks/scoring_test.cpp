// Requests, and models' answers to them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "core/code_of.h"
#include "core/error.h"
#include "core/temp_folder.h"
#include "engine/compare.h"
#include "model/load.h"
#include "tasks/generate.h"
#include "tasks/masked.h"
#include "tasks/python_text.h"
#include "tasks/run_tasks.h"

namespace refold {
namespace {

const std::string kLlama = std::string(REFOLD_FIXTURES) + "/llama/model.gguf";    // SentencePiece, adds BOS
const std::string kBpe = std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf";  // BPE, ChatML

// A checkpoint and a tokenizer as one directory.
void join_fixtures(const std::string& model, const std::string& tokenizer, const TempFolder& folder) {
    namespace fs = std::filesystem;
    for (const std::string& part : {model, tokenizer})
        for (const auto& entry : fs::directory_iterator(fs::path(REFOLD_FIXTURES) / part))
            fs::copy_file(entry.path(), folder / entry.path().filename().string(),
                          fs::copy_options::skip_existing);
}

TaskItem item(const std::string& prompt, std::vector<std::string> choices, int64_t gold = 0) {
    TaskItem i;
    i.prompts = {prompt};
    i.choices = std::move(choices);
    i.gold = {gold};
    return i;
}

Task task_of(std::vector<TaskItem> items, TaskOutput output = TaskOutput::multiple_choice) {
    Task task;
    task.spec.name = "test";
    task.spec.version = "1";
    task.spec.output = output;
    task.spec.metrics = {"acc"};
    for (size_t i = 0; i < items.size(); ++i) items[i].doc_id = static_cast<int64_t>(i);
    task.items = std::move(items);
    return task;
}

Task questions() {
    std::vector<TaskItem> items;
    for (int i = 0; i < 6; ++i) {
        TaskItem q = item("Question " + std::to_string(i / 2) + ": which licence is this?\nAnswer:",
                          {"the first one", "a second", "the first of all", "x"}, i % 4);
        if (i >= 3) q.shots = {{"Question: who?\nAnswer:", "nobody"}, {"Question: when?\nAnswer:", "never"}};
        items.push_back(q);
    }
    items.push_back(item("", {"the", "a"}));
    return task_of(std::move(items));
}

std::vector<const Request*> pointers(const std::vector<Request>& requests) {
    std::vector<const Request*> out;
    for (const Request& r : requests) out.push_back(&r);
    return out;
}

// An engine for many sequences, which counts what it runs.
class Counting : public Engine {
public:
    Counting(const Model& model, int64_t context, int64_t chunk = 512, int64_t kv_tokens = 0)
        : Counting(make_engine(model, {.threads = 1,
                                       .context = context,
                                       .chunk = chunk,
                                       .f32 = true,
                                       .sequences = 0,
                                       .kv_tokens = kv_tokens})) {}

    std::optional<int32_t> open(int64_t tokens) override { return engine_->open(tokens); }
    void close(int32_t sequence) override { engine_->close(sequence); }
    void truncate(int32_t sequence, int64_t length) override { engine_->truncate(sequence, length); }
    void copy(int32_t from, int32_t to, int64_t tokens) override { engine_->copy(from, to, tokens); }
    void share(int32_t sequence, int64_t position, int32_t loop) override {
        engine_->share(sequence, position, loop);
    }
    StepOutput step(const StepInput& input) override {
        EXPECT_FALSE(input.rows.empty());
        ++steps;
        rows += input.rows.size();
        logits += static_cast<size_t>(
            std::count_if(input.rows.begin(), input.rows.end(), [](const Row& row) { return row.logits; }));
        return engine_->step(input);
    }
    int64_t kv_tokens_used() const override { return engine_->kv_tokens_used(); }
    EngineMemory memory() const override { return engine_->memory(); }

    size_t steps = 0, rows = 0, logits = 0;

private:
    explicit Counting(std::unique_ptr<Engine> engine)
        : Engine(engine->capabilities()), engine_(std::move(engine)) {}

    std::unique_ptr<Engine> engine_;
};

std::vector<Likelihood> answers_of(Engine& engine, const std::vector<Request>& requests) {
    std::vector<Likelihood> answers(requests.size());
    std::vector<int> times(requests.size());
    log_likelihoods(engine, pointers(requests), [&](size_t i, const Likelihood& l) {
        answers[i] = l;
        ++times[i];
    });
    EXPECT_THAT(times, testing::Each(1));
    return answers;
}

// The definition of the log likelihood, for one request alone.
Likelihood reference(const Model& model, const Request& r) {
    const auto n_vocab = static_cast<size_t>(model.config.n_vocab);
    const auto logits = all_logits(model, r.tokens, {.threads = 1, .f32 = true});
    Likelihood out;
    for (size_t t = r.tokens.size() - static_cast<size_t>(r.scored); t < r.tokens.size(); ++t) {
        const auto row = std::span(logits).subspan((t - 1) * n_vocab, n_vocab);
        double sum = 0;
        for (const float x : row) sum += std::exp(static_cast<double>(x));
        out.log_likelihood += static_cast<double>(row[static_cast<size_t>(r.tokens[t])]) - std::log(sum);
        out.greedy = out.greedy && static_cast<int32_t>(argmax(row)) == r.tokens[t];
    }
    return out;
}

TEST(Requests, ContextAndContinuationAreSplitAsInLmEval) {
    const Tokenizer tokenizer(kLlama);
    Task task = task_of({item("It is  ", {"free", "not"})});
    task.spec.description = "Licences. ";
    task.items[0].shots = {{"Q", "A"}};
    const auto requests = make_requests(task, tokenizer, {.max_length = 200});
    ASSERT_EQ(requests.size(), 2U);
    EXPECT_EQ(requests[0].context, "Licences. Q A\n\nIt is  ");
    EXPECT_EQ(requests[0].continuation, " free");
    // White space at the end of the context moves to the continuation.
    const auto context = tokenizer.encode("Licences. Q A\n\nIt is", true, true);
    EXPECT_EQ(context.front(), tokenizer.bos());
    const auto whole = tokenizer.encode("Licences. Q A\n\nIt is   free", true, true);
    EXPECT_EQ(requests[0].tokens, whole);
    EXPECT_EQ(requests[0].scored, static_cast<int64_t>(whole.size() - context.size()));
    EXPECT_EQ(requests[1].continuation, " not");
}

TEST(Requests, BosIsNotWrittenTwice) {
    const Tokenizer tokenizer(kLlama);
    const std::string bos = tokenizer.piece(*tokenizer.bos(), true);
    const auto with = make_requests(task_of({item(bos + "It is", {"free"})}), tokenizer, {.max_length = 200});
    EXPECT_EQ(std::count(with[0].tokens.begin(), with[0].tokens.end(), *tokenizer.bos()), 1);
}

TEST(Requests, EmptyContextIsBos) {
    for (const std::string& path : {kLlama, kBpe}) {
        const Tokenizer tokenizer(path);
        const auto requests = make_requests(task_of({item("", {"free"})}), tokenizer, {.max_length = 200});
        auto expected = tokenizer.encode(" free", false, true);
        expected.insert(expected.begin(), tokenizer.bos() ? *tokenizer.bos() : *tokenizer.eos());
        EXPECT_EQ(requests[0].tokens, expected) << path;
        EXPECT_EQ(requests[0].scored, static_cast<int64_t>(expected.size()) - 1);
    }
}

TEST(Requests, TooLongOnesLoseTheirBeginning) {
    const Tokenizer tokenizer(kBpe);
    const Task task = task_of({item("one two three four five six seven eight", {"nine ten", "x"})});
    const auto whole = make_requests(task, tokenizer, {.max_length = 200});
    const auto length = static_cast<int64_t>(whole[0].tokens.size());
    // The last token is only predicted.
    EXPECT_EQ(make_requests(task, tokenizer, {.max_length = length - 1})[0].cut, 0);
    const auto cut = make_requests(task, tokenizer, {.max_length = length - 4});
    EXPECT_EQ(cut[0].cut, 3);
    EXPECT_EQ(cut[0].tokens, std::vector<int32_t>(whole[0].tokens.begin() + 3, whole[0].tokens.end()));
    EXPECT_EQ(cut[0].scored, whole[0].scored);
    EXPECT_EQ(code_of([&] { make_requests(task, tokenizer, {.max_length = whole[0].scored - 1}); },
                      "item 0 has a continuation"),
              ErrorCode::input);
}

TEST(Requests, GenerationLeavesRoom) {
    const Tokenizer tokenizer(kBpe);
    Task task = task_of({item("one two three four five six", {})}, TaskOutput::generate_until);
    task.spec.metrics = {"em"};
    task.items[0].references = {"x"};
    task.spec.generation.max_tokens = 4;
    const auto length =
        static_cast<int64_t>(make_requests(task, tokenizer, {.max_length = 99})[0].tokens.size());
    EXPECT_EQ(make_requests(task, tokenizer, {.max_length = length + 2})[0].cut, 2);
    EXPECT_EQ(code_of([&] { make_requests(task, tokenizer, {.max_length = 4}); }, "raise --context"),
              ErrorCode::usage);
}

TEST(Requests, PartialScoring) {
    const Tokenizer tokenizer(kBpe);
    Task task = task_of({item("", {"is free"})});
    task.items[0].prompts = {"The licence", "The text"};
    task.items[0].gold = {1};
    const auto requests = make_requests(task, tokenizer, {.max_length = 99});
    ASSERT_EQ(requests.size(), 2U);
    EXPECT_EQ(requests[1].context, "The text");
    EXPECT_EQ(requests[1].continuation, " is free");
}

TEST(Requests, TargetsHaveNoDelimiter) {
    const Tokenizer tokenizer(kBpe);
    const auto requests = make_requests(task_of({item("It is", {" free"})}, TaskOutput::loglikelihood),
                                        tokenizer, {.max_length = 99});
    EXPECT_EQ(requests[0].continuation, " free");
}

TEST(Requests, LabelsAreTheirFirstToken) {
    const Tokenizer tokenizer(kBpe);
    const Task task = task_of({item("It is", {"free of charge", "false"})}, TaskOutput::label_probability);
    const auto labels = make_requests(task, tokenizer, {.max_length = 99});
    EXPECT_EQ(labels[0].scored, 1);
    auto whole = tokenizer.encode("It is free of charge", true, true);
    whole.resize(labels[0].tokens.size());
    EXPECT_EQ(labels[0].tokens, whole);
}

TEST(Requests, ChatTemplate) {
    const Tokenizer tokenizer(kBpe);
    Task task = task_of({item("Who?", {"I", "you"})});
    task.spec.description = "Answer.";
    task.items[0].shots = {{"What?", "this"}};
    const auto one = make_requests(task, tokenizer, {.chat_template = true, .max_length = 250});
    EXPECT_EQ(one[0].context,
              "<|im_start|>system\nAnswer.<|im_end|>\n<|im_start|>user\nWhat? this\n\nWho?<|im_end|>\n"
              "<|im_start|>assistant\n");
    EXPECT_EQ(one[0].continuation, "I");
    const auto turns =
        make_requests(task, tokenizer, {.chat_template = true, .multiturn = true, .max_length = 250});
    EXPECT_EQ(turns[0].context,
              "<|im_start|>system\nAnswer.<|im_end|>\n<|im_start|>user\nWhat?<|im_end|>\n"
              "<|im_start|>assistant\nthis<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n"
              "<|im_start|>assistant\n");
    const Tokenizer plain(kLlama);
    EXPECT_EQ(code_of([&] { make_requests(task, plain, {.chat_template = true, .max_length = 250}); },
                      "no chat template"),
              ErrorCode::unsupported);
}

TEST(Requests, BadItems) {
    const Tokenizer tokenizer(kBpe);
    const auto fails = [&](Task task, const std::string& text, ErrorCode code = ErrorCode::input) {
        EXPECT_EQ(code_of([&] { make_requests(task, tokenizer, {.max_length = 99}); }, text), code);
    };
    fails(task_of({item("a", {"b"}), item("a", {})}), "item 1 has no choices");
    fails(task_of({item("a", {"b", "c"}, 2)}), "expected 0 to 1");
    fails(task_of({item("a", {"b", "c"}, -1)}), "has the right choice -1");
    Task none = task_of({item("a", {"b"})});
    none.items[0].gold.clear();
    fails(none, "no right choice");
    none.items[0].prompts.clear();
    fails(none, "no prompt");
    fails(task_of({item("a", {})}, TaskOutput::generate_until), "no reference");
    Task empty = task_of({item("a", {""})});
    empty.spec.target_delimiter = "";
    fails(empty, "without tokens of its own");
    fails(task_of({item("a [MASK]", {"b"})}, TaskOutput::masked_lm), "needs an encoder", ErrorCode::usage);
}

class SharedPrefixes : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, SharedPrefixes, testing::Values(kLlama, kBpe),
                         [](const auto& p) { return p.param == kLlama ? "llama" : "llama_gqa"; });

TEST_P(SharedPrefixes, ChangeNothing) {
    const Model model = load_model(GetParam());
    const Tokenizer tokenizer(GetParam());
    const auto requests = make_requests(questions(), tokenizer, {.max_length = 200});
    std::vector<Likelihood> alone;
    for (const Request& r : requests) alone.push_back(reference(model, r));
    // All at once; steps of a few rows; room for little more than one sequence.
    for (const auto& [chunk, kv_tokens] :
         std::vector<std::pair<int64_t, int64_t>>{{512, 0}, {7, 0}, {64, 201}, {512, 400}}) {
        Counting engine(model, 200, chunk, kv_tokens);
        const auto shared = answers_of(engine, requests);
        for (size_t i = 0; i < requests.size(); ++i) {
            EXPECT_NEAR(shared[i].log_likelihood, alone[i].log_likelihood, 1e-4) << i;
            EXPECT_EQ(shared[i].greedy, alone[i].greedy) << i;
        }
        EXPECT_EQ(engine.kv_tokens_used(), 0);
    }
}

// In an engine of one sequence.
TEST_P(SharedPrefixes, ChangeNothingForOneSequenceAtATime) {
    Model model = load_model(GetParam());
    const Tokenizer tokenizer(GetParam());
    const auto requests = make_requests(questions(), tokenizer, {.max_length = 200});
    model.config.rope.dynamic_factor = 1.0F;
    model.config.rope.original_context = 199;
    const auto engine = make_task_engine(model, {.threads = 1, .context = 200, .f32 = true});
    EXPECT_EQ(engine->capabilities().kv_tokens, 200);
    EXPECT_EQ(engine->capabilities().sequences, 1);
    const auto shared = answers_of(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
        const Likelihood alone = reference(model, requests[i]);
        EXPECT_NEAR(shared[i].log_likelihood, alone.log_likelihood, 1e-4) << i;
        EXPECT_EQ(shared[i].greedy, alone.greedy) << i;
    }
}

TEST(LogLikelihoods, WhatIsSharedIsEvaluatedOnce) {
    const Model model = load_model(kBpe);
    const Tokenizer tokenizer(kBpe);
    // Labels of one token after the same context: only the context runs, with logits for its last token.
    const Task labels = task_of({item("Which letter of these four is it?\nAnswer:", {"A", "B", "C", "D"})},
                                TaskOutput::label_probability);
    auto requests = make_requests(labels, tokenizer, {.max_length = 200});
    for (const Request& r : requests) ASSERT_EQ(r.scored, 1);
    Counting engine(model, 250);
    answers_of(engine, requests);
    EXPECT_EQ(engine.rows, requests[0].tokens.size() - 1);
    EXPECT_EQ(engine.logits, 1U);

    // Many questions with choices: one row per distinct prefix, in a few steps.
    requests = make_requests(questions(), tokenizer, {.max_length = 200});
    std::set<std::vector<int32_t>> beginnings;
    for (const Request& r : requests)
        for (size_t n = 1; n < r.tokens.size(); ++n)
            beginnings.insert({r.tokens.begin(), r.tokens.begin() + static_cast<ptrdiff_t>(n)});
    Counting all(model, 250);
    answers_of(all, requests);
    EXPECT_EQ(all.rows, beginnings.size());
    EXPECT_LT(all.steps, 10U);
}

// A prompt that is longer than a step, and logits that do not fit into one step.
TEST(LogLikelihoods, LongContinuations) {
    const Model model = load_model(kBpe);
    const size_t of_step = logits_of_step(model.config.n_vocab);
    std::vector<Request> requests(2);
    requests[0].tokens = random_tokens(200, model.config.n_vocab, 1);
    requests[0].scored = 150;
    requests[1].tokens = random_tokens(30, model.config.n_vocab, 2);
    requests[1].scored = 29;
    EXPECT_GT(of_step, 16U);
    EXPECT_EQ(logits_of_step(1 << 30), 16U);
    Counting engine(model, 200, 64);
    const auto answers = answers_of(engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
        const double expected = reference(model, requests[i]).log_likelihood;
        EXPECT_NEAR(answers[i].log_likelihood, expected, 1e-5 * std::abs(expected)) << i;
    }
    EXPECT_EQ(engine.logits, 179U);
}

TEST(LogLikelihoods, GreedyContinuationsAreFound) {
    const Model model = load_model(kBpe);
    const Tokenizer tokenizer(kBpe);
    SingleSequence alone(model, {.threads = 1, .context = 200, .f32 = true});
    Counting engine(model, 200);
    Request r;
    r.tokens = tokenizer.encode("The licence of this program", true, true);
    for (int i = 0; i < 3; ++i) {
        alone.truncate(0);
        r.tokens.push_back(static_cast<int32_t>(argmax(alone.evaluate(r.tokens))));
    }
    r.scored = 3;
    EXPECT_TRUE(answers_of(engine, {r})[0].greedy);
    r.tokens.back() = (r.tokens.back() + 1) % static_cast<int32_t>(engine.capabilities().n_vocab);
    EXPECT_FALSE(answers_of(engine, {r})[0].greedy);
}

TEST(LogLikelihoods, CachesThatEvictAreRefused) {
    const Model model = load_model(kBpe);
    const EngineOptions options{
        .threads = 1, .context = 64, .eviction = {.policy = KvPolicy::recent, .budget = 0.5}};
    EXPECT_EQ(code_of([&] { make_task_engine(model, options); }, "--kv-policy"), ErrorCode::usage);
}

TEST(Generate, TextEndsAtTheFirstStop) {
    EXPECT_EQ(before_stops("one. two, three", std::vector<std::string>{",", "."}), "one");
    EXPECT_EQ(before_stops("one", std::vector<std::string>{"", "."}), "one");
}

TEST(Generate, EqualsGreedyDecodingOfEveryPromptAlone) {
    const Model model = load_model(kBpe);
    const Tokenizer tokenizer(kBpe);
    Task task = task_of(
        {item("The licence is", {}), item("The licence", {}), item("The licence is", {}), item("A text", {})},
        TaskOutput::generate_until);
    for (TaskItem& i : task.items) i.references = {"x"};
    task.spec.generation = {.until = {}, .max_tokens = 12};
    const auto requests = make_requests(task, tokenizer, {.max_length = 200});
    std::vector<std::string> expected;
    for (const Request& r : requests) {
        SingleSequence alone(model, {.threads = 1, .context = 200, .f32 = true});
        std::vector<int32_t> tokens = r.tokens, out;
        while (out.size() < 12) {
            const auto next = static_cast<int32_t>(argmax(alone.evaluate(tokens)));
            if (tokenizer.is_end_of_generation(next)) break;
            out.push_back(next);
            tokens = {next};
        }
        expected.push_back(valid_utf8(tokenizer.decode(out, false)));
    }
    std::vector<std::string> texts(requests.size());
    const auto keep = [&](size_t i, const std::string& text) { texts[i] = text; };
    // All at once; prompts in pieces; one after another.
    for (const auto& [chunk, kv_tokens] :
         std::vector<std::pair<int64_t, int64_t>>{{512, 0}, {3, 0}, {512, 201}}) {
        Counting engine(model, 200, chunk, kv_tokens);
        texts.assign(requests.size(), "");
        generate_until(engine, tokenizer, pointers(requests), task.spec.generation, keep);
        EXPECT_EQ(texts, expected);
        EXPECT_EQ(engine.kv_tokens_used(), 0);
        if (chunk == 512 && kv_tokens == 0) {
            EXPECT_LT(engine.steps, 20U);
        }
    }
    Counting engine(model, 200);

    // The text ends where a stop string begins, however it is tokenized.
    const std::string stop = expected[0].substr(expected[0].size() / 2, 2);
    task.spec.generation.until = {stop};
    generate_until(engine, tokenizer, pointers(requests), task.spec.generation, keep);
    EXPECT_EQ(texts[0], expected[0].substr(0, expected[0].find(stop)));
}

class RunTasks : public testing::Test {
protected:
    RunTasks()
        : model(load_model(kBpe)),
          tokenizer(kBpe),
          engine(make_task_engine(model, {.threads = 1, .context = 250, .f32 = true})) {}

    TaskRun prepared() { return prepare_task(questions(), tokenizer, {.max_length = 200}); }
    std::vector<double> likelihoods(const TaskRun& run) {
        std::vector<double> out;
        for (const Answer& answer : run.answers)
            for (const Likelihood& l : answer.choices) out.push_back(l.log_likelihood);
        return out;
    }

    Model model;
    Tokenizer tokenizer;
    std::unique_ptr<Engine> engine;
    TempFolder folder;
};

TEST_F(RunTasks, AnswersAndFiguresOfAllItems) {
    TaskRun run = prepared();
    run.task.spec.metrics = {"acc", "acc_norm"};
    run_task(run, *engine, tokenizer, nullptr, 0);
    ASSERT_EQ(run.answers.size(), 7U);
    EXPECT_EQ(run.answers[0].choices.size(), 4U);
    EXPECT_EQ(run.answers[6].choices.size(), 2U);
    ASSERT_EQ(run.results.size(), 2U);
    double right = 0;
    for (size_t i = 0; i < run.answers.size(); ++i) {
        size_t best = 0;
        for (size_t c = 1; c < run.answers[i].choices.size(); ++c)
            if (run.answers[i].choices[c].log_likelihood > run.answers[i].choices[best].log_likelihood)
                best = c;
        right += static_cast<int64_t>(best) == run.task.items[i].gold[0] ? 1 : 0;
    }
    EXPECT_DOUBLE_EQ(run.results[0].value, right / 7);
    int64_t longest = 0;
    for (const Request& r : run.requests) longest = std::max(longest, static_cast<int64_t>(r.tokens.size()));
    EXPECT_EQ(context_needed(std::span(&run, 1)), longest);
}

// The text, and the likelihood of the first reference behind the prompt.
TEST_F(RunTasks, TextsAndTheLikelihoodOfTheirReferences) {
    Task task = task_of({item("Question: which licence is this?\nAnswer:", {})}, TaskOutput::generate_until);
    task.items[0].references = {"the first one", "another"};
    task.spec.metrics = {"exact_match", "nll"};
    task.spec.generation.max_tokens = 6;
    TaskRun run = prepare_task(task, tokenizer, {.max_length = 200});
    ASSERT_EQ(run.requests.size(), 2U);
    EXPECT_EQ(run.requests[0].scored, 0);
    EXPECT_EQ(run.requests[1].continuation, " the first one");
    run_task(run, *engine, tokenizer, nullptr, 0);

    TaskRun alone = prepare_task(task_of({item(task.items[0].prompts[0], {"the first one"})}), tokenizer,
                                 {.max_length = 200});
    run_task(alone, *engine, tokenizer, nullptr, 0);
    const double likelihood = alone.answers[0].choices[0].log_likelihood;
    EXPECT_NEAR(run.results[1].value, -likelihood / static_cast<double>(alone.requests[0].scored), 1e-6);
    EXPECT_FALSE(run.answers[0].text.empty());
    EXPECT_EQ(context_needed(std::span(&run, 1)),
              std::max<int64_t>(static_cast<int64_t>(run.requests[0].tokens.size()) + 6,
                                static_cast<int64_t>(run.requests[1].tokens.size())));
}

TEST_F(RunTasks, AnInterruptedRunGoesOn) {
    TaskRun whole = prepared();
    run_task(whole, *engine, tokenizer, nullptr, 0);
    const std::string path = folder / "work";
    {
        WorkFile work(path, "key");
        work.add({0, 0}, Likelihood{-1000, true});
        work.add({0, 5}, whole.answers[1].choices[1]);
        work.add({1, 0}, Likelihood{-1, true});  // an answer of another task
    }
    // The line that was being written is lost, later ones are not.
    std::string text = read_all(path);
    write_all(path, text + "[0,6,-12.");
    {
        WorkFile work(path, "key");
        EXPECT_EQ(work.found(), 3U);
        TaskRun run = prepared();
        run_task(run, *engine, tokenizer, &work, 0);
        EXPECT_EQ(work.added(), run.requests.size() - 2);
        auto expected = likelihoods(whole);
        expected[0] = -1000;  // is not evaluated again
        const auto got = likelihoods(run);
        for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-4) << i;
    }
    {
        WorkFile work(path, "key");
        EXPECT_EQ(work.found(), whole.requests.size() + 1);
        TaskRun run = prepared();
        run_task(run, *engine, tokenizer, &work, 0);
        EXPECT_EQ(work.added(), 0U);
        work.finish();
    }
    EXPECT_THAT(folder.files(), testing::IsEmpty());
}

TEST_F(RunTasks, AnswersToOtherQuestionsAreNotUsed) {
    const std::string path = folder / "work";
    { WorkFile(path, "key").add({0, 0}, Likelihood{-1, true}); }
    EXPECT_EQ(WorkFile(path, "other").found(), 0U);
    write_all(path, "no JSON\n[0,0,-1,true]\n");
    EXPECT_EQ(code_of([&] { WorkFile(path, "key"); }, "no file of answers"), ErrorCode::usage);
    EXPECT_EQ(code_of([&] { WorkFile("/proc/none/work", "key"); }, "/proc/none/work"), ErrorCode::io);

    std::vector<TaskRun> runs;
    runs.push_back(prepared());
    const std::string key = run_key("model", "f32", runs);
    EXPECT_EQ(run_key("model", "f32", runs), key);
    EXPECT_NE(run_key("other", "f32", runs), key);
    EXPECT_NE(run_key("model", "f16", runs), key);
    runs[0].requests[3].tokens.back() ^= 1;
    EXPECT_NE(run_key("model", "f32", runs), key);
}

TEST_F(RunTasks, TextsAreResumedToo) {
    Task task = task_of({item("The licence", {}), item("A text", {})}, TaskOutput::generate_until);
    for (TaskItem& i : task.items) i.references = {"x"};
    task.spec.metrics = {"em"};
    task.spec.generation.max_tokens = 4;
    WorkFile work(folder / "work", "key");
    TaskRun run = prepare_task(task, tokenizer, {.max_length = 200});
    run_task(run, *engine, tokenizer, &work, 0);
    WorkFile again(folder / "work", "key");
    EXPECT_EQ(again.found(), 2U);
    ASSERT_NE(again.text({0, 1}), nullptr);
    EXPECT_EQ(*again.text({0, 1}), run.answers[1].text);
}

TEST_F(RunTasks, ExitsOfAnInterruptedRunAreCounted) {
    Model looped = load_model(kBpe);
    auto& layers = looped.topology.layers;
    std::copy_n(layers.begin(), layers.size() / 2,
                layers.begin() + static_cast<ptrdiff_t>(layers.size() / 2));
    looped.topology.loops = 2;
    looped.drop_unreferenced();
    const auto by_loop =
        make_engine(looped, {.threads = 1, .context = 250, .f32 = true, .sequences = 2, .by_loop = true});
    // What some of the tokens meet.
    const ExitPolicy policy{.rule = ExitRule::entropy, .thresholds = {5.2}, .kv = ExitedKv::propagate};
    Task texts = task_of({item("The licence", {}), item("A text", {})}, TaskOutput::generate_until);
    for (TaskItem& i : texts.items) i.references = {"x"};
    texts.spec.metrics = {"em"};
    texts.spec.generation.max_tokens = 4;
    for (const bool generates : {false, true}) {
        const auto task = [&] {
            return generates ? prepare_task(texts, tokenizer, {.max_length = 200}) : prepared();
        };
        const std::string path = folder / "work";
        TaskRun whole = task();
        {
            WorkFile work(path, "key");
            run_task(whole, *by_loop, policy, tokenizer, &work, 0);
        }
        EXPECT_GT(whole.exits.at_loop[0], 0);
        EXPECT_GT(whole.exits.at_loop[1], 0);
        // An answer without exits, and one with another number of loops, are evaluated again.
        std::istringstream lines(read_all(path));
        std::string header, first, second, rest;
        for (std::string* line : {&header, &first, &second}) std::getline(lines, *line);
        std::getline(lines, rest, '\0');
        nlohmann::json without = nlohmann::json::parse(first), other = nlohmann::json::parse(second);
        without.erase(without.size() - 1);
        other.back()["exits"] = {1, 2, 3};
        write_all(path, header + "\n" + without.dump() + "\n" + other.dump() + "\n" + rest);
        WorkFile work(path, "key");
        TaskRun run = task();
        run_task(run, *by_loop, policy, tokenizer, &work, 0);
        EXPECT_EQ(work.added(), 2U);
        EXPECT_EQ(run.exits.at_loop, whole.exits.at_loop);
        EXPECT_EQ(run.exits.agreed, whole.exits.agreed);
        for (size_t i = 0; i < run.answers.size(); ++i) EXPECT_EQ(run.answers[i].text, whole.answers[i].text);
        EXPECT_THAT(likelihoods(run), testing::Pointwise(testing::DoubleNear(1e-4), likelihoods(whole)));
        work.finish();
    }
}

TEST_F(RunTasks, BadTasks) {
    EXPECT_EQ(code_of([&] { prepare_task(task_of({}), tokenizer, {.max_length = 200}); }, "no items"),
              ErrorCode::input);
    Task task = questions();
    task.spec.metrics = {"acc_nrom"};
    EXPECT_EQ(code_of([&] { prepare_task(task, tokenizer, {.max_length = 200}); }, "acc_norm"),
              ErrorCode::usage);
}

// lm-evaluation-harness's results for the same model (bench/lm_eval --golden). hellaswag's items are longer
// than the model's context.
class LmEval : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Tasks, LmEval, testing::Values("hellaswag", "piqa"),
                         [](const auto& p) { return p.param; });

TEST_P(LmEval, SameLikelihoodsAndMetricsOfEveryItem) {
    const std::string folder = std::string(REFOLD_FIXTURES) + "/tasks/lm_eval/" + GetParam();
    std::vector<TaskItem> items;
    std::vector<nlohmann::json> golden;
    std::istringstream lines(read_all(folder + ".jsonl"));
    for (std::string line; std::getline(lines, line);) {
        golden.push_back(nlohmann::json::parse(line));
        std::vector<std::string> choices;
        for (const auto& argument : golden.back()["arguments"])
            choices.push_back(argument["arg_1"].get<std::string>().substr(1));
        items.push_back(item(golden.back()["arguments"]["gen_args_0"]["arg_0"], choices,
                             std::stoi(golden.back()["target"].get<std::string>())));
    }
    ASSERT_EQ(items.size(), 20U);
    TempFolder bpe;
    join_fixtures("hf/llama_gqa", "tokenizers/bpe_llama3", bpe);
    const std::string path = GetParam() == "piqa" ? bpe / "" : kLlama;
    const Model model = load_model(path);
    const Tokenizer tokenizer(path);
    Task task = task_of(std::move(items));
    task.spec.metrics = {"acc", "acc_norm"};
    const int64_t length = GetParam() == "piqa" ? model.config.context_length : 96;
    TaskRun run = prepare_task(task, tokenizer, {.max_length = length});
    EXPECT_EQ(run.cut_requests() > 5, GetParam() == "hellaswag");
    const auto engine = make_task_engine(model, {.threads = 1, .context = length, .f32 = true});
    run_task(run, *engine, tokenizer, nullptr, 0);
    for (size_t i = 0; i < golden.size(); ++i) {
        const auto& responses = golden[i]["filtered_resps"];
        ASSERT_EQ(run.answers[i].choices.size(), responses.size());
        for (size_t c = 0; c < responses.size(); ++c) {
            const double expected = responses[c][0];
            EXPECT_NEAR(run.answers[i].choices[c].log_likelihood, expected, 1e-5 * std::abs(expected))
                << i << " " << c;
            EXPECT_EQ(run.answers[i].choices[c].greedy, responses[c][1].get<bool>());
        }
        EXPECT_EQ(run.values[0].values[i], golden[i]["acc"].get<double>()) << i;
        EXPECT_EQ(run.values[1].values[i], golden[i]["acc_norm"].get<double>()) << i;
    }
    const auto results = nlohmann::json::parse(read_all(folder + ".json"));
    EXPECT_DOUBLE_EQ(run.results[0].value, results["acc,none"].get<double>());
    EXPECT_DOUBLE_EQ(run.results[1].value, results["acc_norm,none"].get<double>());
}

// A vocabulary with a mask, and an encoder with a language-model head.
class Masked : public testing::Test {
protected:
    Masked() { join_fixtures("hf/bert_hub", "tokenizers/wordpiece_bert", folder); }
    TempFolder folder;
};

TEST_F(Masked, PseudoLogLikelihoods) {
    const Model model = load_model(folder / "");
    const Tokenizer tokenizer(folder / "");
    ASSERT_TRUE(tokenizer.mask());
    Task task = task_of({item("this [MASK] is free", {"licence", "program"}, 1)}, TaskOutput::masked_lm);
    const auto requests = make_requests(task, tokenizer, {.max_length = 60, .encoder = true});
    const auto engine = make_task_engine(model, {.threads = 1, .context = 64, .f32 = true});
    const auto n_vocab = static_cast<size_t>(engine->capabilities().n_vocab);
    std::vector<Likelihood> answers(2);
    masked_likelihoods(*engine, *tokenizer.mask(), pointers(requests),
                       [&](size_t i, const Likelihood& l) { answers[i] = l; });
    SingleSequence sequence(*engine);
    for (size_t i = 0; i < 2; ++i) {
        const Request& r = requests[i];
        EXPECT_EQ(r.tokens, tokenizer.encode("this " + task.items[0].choices[i] + " is free", true, true));
        double expected = 0;
        for (int64_t t = r.first_scored; t < r.first_scored + r.scored; ++t) {
            const auto at = static_cast<size_t>(t);
            std::vector<int32_t> tokens = r.tokens;
            tokens[at] = *tokenizer.mask();
            const auto logits = sequence.encode({.tokens = tokens, .token_types = {}, .mask = {}}).logits;
            double sum = 0;
            for (size_t v = 0; v < n_vocab; ++v)
                sum += std::exp(static_cast<double>(logits[at * n_vocab + v]));
            expected +=
                static_cast<double>(logits[at * n_vocab + static_cast<size_t>(r.tokens[at])]) - std::log(sum);
        }
        EXPECT_NEAR(answers[i].log_likelihood, expected, 1e-5) << i;
    }
}

TEST_F(Masked, LabelsOfEncodersComeLast) {
    const Tokenizer tokenizer(folder / "");
    const Task task = task_of({item("this is", {"free", "not free"})}, TaskOutput::label_probability);
    const auto requests = make_requests(task, tokenizer, {.max_length = 60, .encoder = true});
    EXPECT_EQ(requests[0].context, "this is [MASK]");
    EXPECT_EQ(requests[1].scored, 1);
    EXPECT_EQ(requests[1].tokens, tokenizer.encode("this is not", true, true));
}

// As LASER's program asks RoBERTa: five masks filled at once, and the answer masked at once.
TEST_F(Masked, MasksInPlaceOfGeneratedText) {
    const Model model = load_model(folder / "");
    const Tokenizer tokenizer(folder / "");
    const int32_t mask = *tokenizer.mask();
    Task task = task_of({item("the licence is", {})}, TaskOutput::generate_until);
    task.items[0].references = {"free software"};
    task.spec.metrics = {"laser_acc", "nll"};
    EXPECT_EQ(code_of([&] { make_requests(task, tokenizer, {.max_length = 60, .encoder = true}); },
                      "is an encoder"),
              ErrorCode::usage);
    task.spec.generation.masks = 5;
    TaskRun run = prepare_task(task, tokenizer, {.max_length = 60, .encoder = true});
    ASSERT_EQ(run.requests.size(), 2U);
    const std::vector<int32_t>& filled = run.requests[0].tokens;
    EXPECT_EQ(std::count(filled.begin(), filled.end(), mask), 5);
    EXPECT_EQ(filled.back(), tokenizer.encode("", true, true).back());  // [SEP]
    const Request& answer = run.requests[1];
    EXPECT_EQ(answer.tokens, tokenizer.encode("the licence is free software", false, true));

    const auto engine = make_task_engine(model, {.threads = 1, .context = 64, .f32 = true});
    run_task(run, *engine, tokenizer, nullptr, 0);
    SingleSequence sequence(*engine);
    const auto n_vocab = static_cast<size_t>(engine->capabilities().n_vocab);
    const auto logits_at = [&](const std::vector<int32_t>& tokens) {
        const auto logits = sequence.encode({.tokens = tokens, .token_types = {}, .mask = {}}).logits;
        return [logits, n_vocab](size_t at) {
            return std::vector<float>(logits.begin() + static_cast<ptrdiff_t>(at * n_vocab),
                                      logits.begin() + static_cast<ptrdiff_t>((at + 1) * n_vocab));
        };
    };
    std::vector<int32_t> likely;
    const auto of_masks = logits_at(filled);
    for (size_t t = 0; t < filled.size(); ++t)
        if (filled[t] == mask) likely.push_back(likeliest(of_masks(t)));
    EXPECT_EQ(run.answers[0].text, valid_utf8(tokenizer.decode(likely, false)));

    std::vector<int32_t> masked = answer.tokens;
    std::fill(masked.begin() + answer.first_scored, masked.end(), mask);
    const auto of_answer = logits_at(masked);
    double sum = 0;
    for (auto t = static_cast<size_t>(answer.first_scored); t < masked.size(); ++t)
        sum += likelihood_of(of_answer(t), answer.tokens[t]).log_likelihood;
    // The program counts one token more.
    EXPECT_NEAR(run.results[1].value, -sum / static_cast<double>(answer.scored + 1), 1e-5);
    EXPECT_GT(answer.scored, 1);
}

TEST_F(Masked, BadPrompts) {
    const Tokenizer tokenizer(folder / "");
    const PromptOptions options{.max_length = 60, .encoder = true};
    EXPECT_EQ(code_of(
                  [&] {
                      make_requests(task_of({item("[MASK] [MASK]", {"a"})}, TaskOutput::masked_lm), tokenizer,
                                    options);
                  },
                  "exactly once"),
              ErrorCode::input);
    EXPECT_EQ(
        code_of([&] { make_requests(task_of({item("a", {"a"})}), tokenizer, options); }, "is an encoder"),
        ErrorCode::usage);
    EXPECT_EQ(code_of(
                  [&] {
                      make_requests(task_of({item("a [MASK]", {"a"})}, TaskOutput::masked_lm), tokenizer,
                                    {.max_length = 2, .encoder = true});
                  },
                  "the encoder sees 2"),
              ErrorCode::input);
}

}  // namespace
}  // namespace refold
