// refold_demo: the main use of refold on one model, from end to end. Shares heads at several ratios, with and
// without refit, runs every variant, and writes costs and gains as a table, report.json and report.html.
//
// A process of its own (this program again, with --measure) measures every variant, so that memory is that of
// the variant alone. Speed is measured at the end in one process, in turns with stock llama.cpp.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "calibrate/calibration.h"
#include "compress/compress.h"
#include "core/error.h"
#include "core/files.h"
#include "core/interrupt.h"
#include "core/parallel.h"
#include "core/text.h"
#include "eval/perplexity.h"
#include "eval/speed.h"
#include "eval/stock.h"
#include "generation/generator.h"
#include "model/load.h"
#include "model/save.h"
#include "model/without_sharing.h"
#include "report/collect.h"
#include "text/tokenizer.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kContext = 1024;
constexpr int64_t kGenerated = 64;

struct Arguments {
    std::string model, name, text, calib, output = "build/demo";
    int64_t calib_tokens = 8192;
    std::vector<double> ratios = {0.1, 0.3};
    std::string prompt = "Why is the sky blue?";
    int threads = default_threads();
    int64_t windows = 4;
    SpeedOptions speed{.prefill = 512, .decode = 128, .rounds = 3, .seed = 0};
    bool measure = false;
};

// ---- one variant, in its own process ----

std::string generate(Engine& engine, const Tokenizer& tokenizer, const std::string& prompt) {
    const bool chat = tokenizer.has_chat_template();
    const std::string text =
        chat ? tokenizer.apply_chat_template(std::vector<ChatMessage>{{"user", prompt}}) : prompt;
    GenerationRequest request;
    request.prompt = tokenizer.encode(text, true, chat);
    request.max_tokens = kGenerated;
    return tokenizer.decode(Generator(engine, tokenizer).run(request).tokens, false);
}

// Prints the measurements as one line of JSON.
void measure(const Arguments& a) {
    const Tokenizer tokenizer(a.model);
    EngineOptions options;
    options.threads = a.threads;
    options.context = kContext;
    // The mapped file is gone before memory is measured: what counts is what running takes.
    const std::unique_ptr<Engine> engine = make_engine(load_model(a.model), options);
    const std::string generated = generate(*engine, tokenizer, a.prompt);
    const uint64_t resident = resident_bytes();

    SingleSequence sequence(*engine);
    const std::vector<int32_t> tokens = tokenizer.encode(read_text_file(a.text), tokenizer.adds_bos(), false);
    PerplexityOptions how;
    how.context = kContext;
    how.max_windows = a.windows;
    const PerplexityResult ppl = perplexity(sequence, tokens, how);
    const EngineMemory memory = sequence.memory();
    const json out = {{"resident_weight_bytes", memory.weight_bytes},
                      {"resident_set_bytes", resident},
                      {"generated", generated},
                      {"perplexity", ppl.perplexity},
                      {"standard_error", ppl.standard_error},
                      {"tokens_scored", ppl.tokens_scored},
                      {"windows", ppl.windows}};
    fmt::print("{}\n", out.dump(-1, ' ', false, json::error_handler_t::replace));
}

// Runs this program again and returns its standard output; its progress goes to our stderr.
std::string run_self(const std::vector<std::string>& arguments) {
    int pipe_ends[2];
    if (pipe2(pipe_ends, O_CLOEXEC) != 0)
        fail(ErrorCode::io, "demo", "cannot make a pipe: {}", std::strerror(errno));
    std::vector<char*> argv;
    std::string self = "/proc/self/exe";
    argv.push_back(self.data());
    std::vector<std::string> copies = arguments;
    for (auto& argument : copies) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const pid_t child = fork();
    if (child < 0) fail(ErrorCode::io, "demo", "cannot start a process: {}", std::strerror(errno));
    if (child == 0) {
        dup2(pipe_ends[1], STDOUT_FILENO);
        execv(self.c_str(), argv.data());
        _exit(127);
    }
    close(pipe_ends[1]);
    std::string out;
    char buffer[4096];
    // An interrupt reaches the child as well, and its end closes the pipe.
    for (ssize_t got; (got = read(pipe_ends[0], buffer, sizeof buffer)) != 0;) {
        if (got > 0) out.append(buffer, static_cast<size_t>(got));
        if (got < 0 && errno != EINTR) break;
    }
    close(pipe_ends[0]);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    check_interrupt();
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail(ErrorCode::io, "demo", "measuring failed, see above");
    return out;
}

// ---- all variants ----

void say(const std::string& line) { fmt::print(stderr, "{}\n", line); }

std::string percent(double ratio) { return fmt::format("{:g} %", 100 * ratio); }

std::string first_match(const char* path, const std::string& key) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with(key)) continue;
        const size_t start = line.find_first_not_of(" \t:", key.size());
        return start == std::string::npos ? "" : line.substr(start);
    }
    return "";
}

Machine this_machine(int threads) {
    const std::string memory = first_match("/proc/meminfo", "MemTotal");
    return {first_match("/proc/cpuinfo", "model name"), threads,
            std::strtoull(memory.c_str(), nullptr, 10) * 1024};
}

void add_measured(Variant& v, const std::string& path, const Arguments& a) {
    say(fmt::format("{}: running it in a process of its own", v.name));
    const json m = json::parse(
        run_self({"--measure", "--model", path, "--text", a.text, "--prompt", a.prompt, "--threads",
                  std::to_string(a.threads), "--windows", std::to_string(a.windows)}));
    v.resident_weight_bytes = m.at("resident_weight_bytes");
    v.resident_set_bytes = m.at("resident_set_bytes");
    v.prompt = a.prompt;
    v.generated = m.at("generated");
    // JSON has no infinity: null replaces it.
    const auto real = [&](const char* key) {
        return m.at(key).is_null() ? HUGE_VAL : m.at(key).get<double>();
    };
    v.perplexities.push_back(
        {real("perplexity"), real("standard_error"), m.at("tokens_scored"),
         fmt::format("Text {}; windows: {}, of {} tokens without overlap, the first token of "
                     "each not scored; tokens scored: {}.",
                     fs::path(a.text).filename().string(), m.at("windows").get<int64_t>(), kContext,
                     format_count(m.at("tokens_scored").get<uint64_t>()))});
}

void add_speed(std::vector<Variant>& variants, const std::vector<std::string>& paths, const Arguments& a) {
    EngineOptions options;
    options.threads = a.threads;
    options.context = a.speed.prefill + a.speed.decode;
    std::vector<std::unique_ptr<SingleSequence>> sequences;
    std::vector<SpeedSubject> subjects;
    for (size_t i = 0; i < paths.size(); ++i) {
        sequences.push_back(std::make_unique<SingleSequence>(load_model(paths[i]), options));
        sequences.back()->pause();
        subjects.push_back(subject(variants[i].name, *sequences.back()));
    }
    StockOptions stock_options;
    stock_options.threads = a.threads;
    stock_options.context = options.context;
    StockLlama stock(paths.front(), stock_options);
    stock.pause();
    subjects.push_back(subject("stock llama.cpp", stock));
    say(fmt::format("speed: {} tokens of prompt, {} decoded, all in turns", a.speed.prefill, a.speed.decode));
    const auto results =
        measure_speed(std::move(subjects), sequences.front()->capabilities().n_vocab, a.speed);
    const SpeedResult& base = results.back();
    const auto figure = [](const SpeedSeries& own, const SpeedSeries& other) {
        return SpeedFigure{own.median(), other.median(), ratio(own, other)};
    };
    for (size_t i = 0; i < variants.size(); ++i) {
        variants[i].prefill = figure(results[i].prefill, base.prefill);
        variants[i].decode = figure(results[i].decode, base.decode);
    }
}

// True if both have the same tensors with the same shapes and types: stock llama.cpp then runs both equally
// fast.
bool stored_alike(const Model& a, const Model& b) {
    return std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                      [](const auto& x, const auto& y) {
                          return x.first == y.first && x.second.type == y.second.type &&
                                 x.second.shape == y.second.shape;
                      });
}

std::string stock_note(bool same_types) {
    const std::string timed =
        "Stock llama.cpp was timed once, in turns with all variants, on the dense file; ";
    if (same_types)
        return timed +
               "the figure holds for the shared variants too, which have the same shapes and types when "
               "written out without sharing.";
    return timed +
           "some tensors of the shared variants have another type, so its speed on these, written out "
           "without "
           "sharing, would differ a little.";
}

std::string variant_file(double ratio, bool refitted) {
    return fmt::format("shared-{:g}{}.gguf", ratio, refitted ? "-refit" : "");
}

std::vector<std::string> commands(const Arguments& a) {
    const auto name = [](const std::string& path) { return fs::path(path).filename().string(); };
    std::vector<std::string> lines = {
        fmt::format("refold_demo --model {} --text {} --calib {} --calib-tokens {} --ratios {:g} --windows "
                    "{} --threads {} --prefill {} "
                    "--decode {} --rounds {}",
                    name(a.model), name(a.text), name(a.calib), a.calib_tokens, fmt::join(a.ratios, ","),
                    a.windows, a.threads, a.speed.prefill, a.speed.decode, a.speed.rounds),
        "# or one by one:"};
    for (const double r : a.ratios) {
        const std::string shared = variant_file(r, false), out = variant_file(r, true);
        lines.push_back(fmt::format("refold compress {} -o {} --method direct_share --set ratio={:g}",
                                    name(a.model), shared, r));
        lines.push_back(fmt::format("refold compress {} -o {} --recipe {} --calib {} --calib-tokens {}",
                                    name(a.model), out, fs::path(out).replace_extension(".yaml").string(),
                                    name(a.calib), a.calib_tokens));
        lines.push_back(fmt::format("refold eval ppl {} --text {} --context {} --max-windows {} --threads {}",
                                    out, name(a.text), kContext, a.windows, a.threads));
        lines.push_back(fmt::format("refold bench {} --prefill {} --decode {} --threads {}", out,
                                    a.speed.prefill, a.speed.decode, a.threads));
    }
    return lines;
}

Calibration read_calibration(const Arguments& a) {
    const std::string text = read_text_file(a.calib);
    const Tokenizer tokenizer(a.model);
    return make_calibration(fs::path(a.calib).filename().string(), text,
                            tokenizer.encode(text, tokenizer.adds_bos(), false), {.tokens = a.calib_tokens});
}

void demo(const Arguments& a) {
    const auto start = std::chrono::steady_clock::now();
    read_text_file(a.text);  // reports a missing text before minutes of work
    if (a.calib.empty()) fail(ErrorCode::usage, "demo", "--calib is missing: the text that refit solves on");
    const Calibration calibration = read_calibration(a);
    std::error_code failed;
    fs::create_directories(a.output, failed);
    if (failed) fail(ErrorCode::io, "demo", "cannot make the folder '{}': {}", a.output, failed.message());
    const Model dense = load_model(a.model);

    Comparison c;
    c.model = a.name.empty() ? fs::path(a.model).stem().string() : a.name;
    c.title = c.model + ": dense, with shared heads, and refitted";
    c.source = fs::path(a.model).filename().string();
    c.version = REFOLD_VERSION;
    c.date = utc_now(kDateFormat);
    c.machine = this_machine(a.threads);
    c.commands = commands(a);
    c.notes = {
        fmt::format(
            "Shared variants are DirectShare's results; with refit, the remaining linear maps are solved "
            "again, without training, on {} tokens of {}, which is not the text that perplexity is "
            "measured on.",
            a.calib_tokens, fs::path(a.calib).filename().string()),
        fmt::format("Speed: rounds {} (median), prompt {} tokens, then {} decoded, threads {}. Generated "
                    "texts: greedy, at most {} tokens.",
                    a.speed.rounds, a.speed.prefill, a.speed.decode, a.threads, kGenerated),
    };
    std::vector<std::string> paths = {a.model};
    c.variants.push_back(describe_model(dense, {a.model, "dense"}));
    c.hashes = c.variants.front().hashes;
    bool same_types = true;
    for (const double r : a.ratios) {
        for (const bool refitted : {false, true}) {
            const std::string name = percent(r) + (refitted ? ", refit" : " shared");
            say(fmt::format("{}: {}", name, refitted ? "sharing heads, then refit" : "sharing heads"));
            const std::vector<std::string> settings = {fmt::format("ratio={:g}", r)};
            Recipe recipe = recipe_from_method("direct_share", settings);
            if (refitted) recipe.steps.push_back(recipe_from_method("refit", {}).steps.front());
            Work work;
            const Compression result =
                compress(dense, recipe, REFOLD_VERSION, work, {refitted ? &calibration : nullptr, a.threads});
            const fs::path path = fs::path(a.output) / variant_file(r, refitted);
            paths.push_back(path.string());
            save_model(result.model, paths.back(), true);
            same_types = same_types && stored_alike(without_sharing(result.model), dense);
            c.variants.push_back(describe_model(load_model(paths.back()), {paths.back(), name}));
            if (refitted) write_file(fs::path(path).replace_extension(".yaml").string(), to_yaml(recipe));
        }
    }
    c.notes.push_back(stock_note(same_types));
    for (size_t i = 0; i < paths.size(); ++i) add_measured(c.variants[i], paths[i], a);
    add_speed(c.variants, paths, a);

    const std::string json_path = (fs::path(a.output) / "report.json").string(),
                      html_path = (fs::path(a.output) / "report.html").string();
    write_file(json_path, to_json(c));
    write_file(html_path, to_html(c));
    fmt::print("\n{}\n", to_table(c));
    for (const auto& v : c.variants) fmt::print("{}: \"{}\" ->\n    {}\n", v.name, v.prompt, v.generated);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    fmt::print("\nreport: {} and {} ({})\n", html_path, json_path, format_seconds(seconds));
}

int run(int argc, char** argv) {
    Arguments a;
    CLI::App app{
        "Shares heads of a model at several ratios, with and without refit, and compares the results with "
        "the dense "
        "model.\n"
        "example: refold_demo --model model.gguf --text text.txt --calib other.txt -o build/demo --ratios "
        "0.1,0.3"};
    app.add_option("--model", a.model, "GGUF file of the dense model")->required()->check(CLI::ExistingFile);
    app.add_option("--name", a.name, "name of the model in the report; default: the file's name");
    app.add_option("--text", a.text, "UTF-8 text for perplexity")->required()->check(CLI::ExistingFile);
    app.add_option("--calib", a.calib, "UTF-8 text that refit solves on; not the same as --text")
        ->check(CLI::ExistingFile);
    app.add_option("--calib-tokens", a.calib_tokens, "tokens of --calib")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("-o,--output", a.output, "folder for models and reports")->capture_default_str();
    app.add_option("--ratios", a.ratios, "parts of all heads to share")
        ->delimiter(',')
        ->check(CLI::Range(0.0, 1.0))
        ->capture_default_str();
    app.add_option("--prompt", a.prompt, "prompt of the sample texts")->capture_default_str();
    app.add_option("--threads", a.threads, "threads")->check(CLI::Range(1, 512))->capture_default_str();
    app.add_option("--windows", a.windows, "windows of text for perplexity, 0: all")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app.add_option("--prefill", a.speed.prefill, "tokens of prompt when timing")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--decode", a.speed.decode, "tokens decoded after the prompt when timing")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--rounds", a.speed.rounds, "rounds of timing; medians are reported")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_flag("--measure", a.measure)->group("");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : refold::exit_code(ErrorCode::usage);
    }
    install_interrupt_handlers();
    try {
        if (a.measure) {
            measure(a);
        } else {
            demo(a);
        }
    } catch (const Error& error) {
        say(fmt::format("refold_demo: {}", error.what()));
        return refold::exit_code(error.code());
    } catch (const std::exception& error) {
        say(fmt::format("refold_demo: {}", error.what()));
        return 1;
    }
    return 0;
}

}  // namespace
}  // namespace refold

int main(int argc, char** argv) { return refold::run(argc, argv); }
