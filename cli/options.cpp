#include "cli/options.h"

#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "cli/output.h"
#include "core/error.h"
#include "core/files.h"
#include "core/parallel.h"
#include "core/progress.h"
#include "core/text.h"
#include "linalg/blas_threads.h"

namespace refold::cli {

void add_report_options(CLI::App& app, ReportOptions& options) {
    app.add_flag("--json", options.json, "Print the result as JSON on standard output");
    app.add_flag_callback(
        "-q,--quiet",
        [&options] {
            options.quiet = true;
            set_progress_style(ProgressStyle::none);
        },
        "No progress and no statistics on standard error");
}

CLI::Option* add_model(CLI::App& app, std::string& model) {
    return app.add_option("MODEL", model,
                          "A .gguf file, a Hugging Face directory, or a name that `refold pull` has fetched");
}

CLI::Option* add_output(CLI::App& app, OutputOptions& options, const char* description) {
    CLI::Option* option = app.add_option("-o,--output", options.path, description)->type_name("FILE");
    app.add_flag("--overwrite", options.overwrite, "Replace the output if it exists");
    return option;
}

void check_output(const OutputOptions& output, const std::string& input) {
    namespace fs = std::filesystem;
    std::error_code none;
    if (fs::equivalent(output.path, input, none)) {
        fail(ErrorCode::usage, "output", "--output '{}' is the input file - choose another name",
             output.path);
    }
    // Creates and removes a temporary file: exactly what will be needed later.
    const AtomicFile probe(output.path, output.overwrite);
}

void add_threads(CLI::App& app, int& threads) {
    app.add_option_function<int>(
           "-t,--threads",
           [&threads](int value) {
               threads = value;
               set_default_threads(value);
               blas::set_threads(value);
           },
           "Worker threads")
        ->type_name("N")
        ->check(CLI::Range(1, 512))
        ->default_str("all cores");
}

void add_engine_options(CLI::App& app, EngineOptions& options, const char* context_default) {
    add_threads(app, options.threads);
    app.add_option("-c,--context", options.context, "Room for tokens in the KV cache")
        ->type_name("TOKENS")
        ->check(at_least(1))
        ->default_str(context_default);
    app.add_flag("--f32", options.f32, "Compute with float32 weights, activations and KV cache");
    app.add_option_function<std::string>(
           "--kv",
           [&options](const std::string& type) { options.kv = type == "f32" ? KvType::f32 : KvType::f16; },
           "Type of the KV cache: f16 or f32 (--f32 implies f32)")
        ->type_name("TYPE")
        ->check(CLI::IsMember({"f16", "f32"}))
        ->default_str("f16");
}

CLI::Option* add_kv_budget(CLI::App& app, double& budget) {
    return app
        .add_option("--kv-budget", budget,
                    "Rows of the KV cache per token of context; layers with a window keep theirs")
        ->type_name("PART")
        ->check(CLI::Range(0.0, 1.0).description(""))
        ->capture_default_str();
}

void add_eviction_options(CLI::App& app, EvictionOptions& options) {
    CLI::Option* by_policy =
        app.add_option_function<std::string>(
               "--kv-policy",
               [&options](const std::string& name) {
                   for (const KvPolicy policy : {KvPolicy::none, KvPolicy::h2o, KvPolicy::recent})
                       if (name == kv_policy_name(policy)) options.policy = policy;
               },
               "Tokens that stay in a KV cache with a budget. none: all; h2o: the most recent ones and those "
               "with the most attention so far; recent: the first and the most recent ones")
            ->type_name("NAME")
            ->check(CLI::IsMember({"none", "h2o", "recent"}))
            ->default_str("none");
    add_kv_budget(app, options.budget)->needs(by_policy);
    app.add_option("--kv-recent", options.recent, "h2o: part of the rows that the most recent tokens have")
        ->type_name("PART")
        ->check(CLI::Range(0.0, 1.0).description(""))
        ->capture_default_str();
    app.add_option("--kv-sinks", options.sinks, "recent: first tokens that always stay")
        ->type_name("TOKENS")
        ->check(at_least(0))
        ->capture_default_str();
}

void add_engine_kind(CLI::App& app, EngineOptions& options) {
    app.add_option_function<std::string>(
           "--engine",
           [&options](const std::string& name) {
               options.kind = name == "torch" ? EngineKind::torch : EngineKind::ggml;
           },
           "ggml, or torch: libtorch in float32, for comparison")
        ->type_name("NAME")
        ->check(CLI::IsMember({"ggml", "torch"}))
        ->default_str("ggml");
    app.add_option("--device", options.device,
                   "of the torch engine: auto (a CUDA device where libtorch finds one), cpu or cuda")
        ->type_name("NAME")
        ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
        ->capture_default_str();
}

std::unique_ptr<Engine> make_engine(const std::string& path, const EngineOptions& options) {
    return make_engine(load_model(path), options);
}

std::unique_ptr<Engine> make_engine(const Model& model, const EngineOptions& options) {
    auto engine = std::make_unique<Engine>(model, options);
    if (engine->context() > model.config.context_length) {
        log("note: '{}' was trained for {} tokens of context, {} are asked for", model.label,
            model.config.context_length, engine->context());
    }
    return engine;
}

// CLI11's own conversion takes an empty word for 0.
template <typename T>
static std::vector<T> parse_list(const std::string& name, const std::string& text, const char* expected) {
    std::vector<T> values;
    const char *at = text.data(), *const end = at + text.size();
    for (;;) {
        while (at != end && *at == ' ') ++at;
        const auto [next, error] = std::from_chars(at, end, values.emplace_back());
        if (error != std::errc() || (next != end && *next != ',')) {
            throw CLI::ValidationError(name, fmt::format("got '{}', expected {}", text, expected));
        }
        if (next == end) return values;
        at = next + 1;
    }
}

CLI::Option* add_exit_options(CLI::App& app, ExitPolicy& policy, bool* oracle) {
    CLI::Option* exit =
        app.add_option_function<std::string>(
               "--exit",
               [&policy, oracle](const std::string& name) {
                   if (oracle != nullptr) *oracle = name == "oracle";
                   if (oracle == nullptr || !*oracle) policy.rule = exit_rule_from_name(name);
               },
               fmt::format(
                   "When a token's result is taken after fewer loops of a looped model. none; fixed: after "
                   "--exit-loop; probability, margin (before the second), entropy: of the result so far, "
                   "by --exit-threshold{}",
                   oracle != nullptr ? "; oracle: as soon as it is the last loop's, for analysis" : ""))
            ->type_name("RULE")
            ->default_str("none");
    app.add_option("--exit-loop", policy.loop, "fixed: the loop, from 1")
        ->type_name("N")
        ->check(at_least(1))
        ->needs(exit);
    app.add_option_function<std::string>(
           "--exit-threshold",
           [&policy](const std::string& text) {
               policy.thresholds =
                   parse_list<double>("--exit-threshold", text, "numbers as in 0.9 or 0.9,0.8");
           },
           "Exit with a probability or margin of at least X, an entropy (nats) of at most X; one for all "
           "loops, "
           "or one for each but the last")
        ->type_name("X,...")
        ->needs(exit);
    app.add_option_function<std::string>(
           "--exit-kv", [&policy](const std::string& name) { policy.kv = exited_kv_from_name(name); },
           "Keys and values of the loops that an exited token leaves out. catch-up: the loops are run after "
           "all, "
           "for them only; propagate: projected from the state that it left with; share: those of the loop "
           "that it "
           "left after")
        ->type_name("NAME")
        ->default_str(exited_kv_name(policy.kv))
        ->needs(exit);
    return exit;
}

void add_sampling_options(CLI::App& app, SamplingOptions& options) {
    app.add_option("--temperature,--temp", options.temperature,
                   "Randomness of the choice of tokens; 0 takes the likeliest")
        ->type_name("X")
        ->capture_default_str();
    app.add_option("--top-k", options.top_k, "Choose among the K likeliest tokens; 0: all")
        ->type_name("K")
        ->capture_default_str();
    app.add_option("--top-p", options.top_p,
                   "Choose among the likeliest tokens that hold this much probability")
        ->type_name("P")
        ->default_str(fmt::format("{}", options.top_p));
    app.add_option("--seed", options.seed, "Seed of the choice")->type_name("N")->capture_default_str();
}

CLI::Option* add_token_ids(CLI::App& app, const char* name, std::vector<int32_t>& ids,
                           const char* description) {
    const std::string label(std::string_view(name).substr(std::string_view(name).find("--")));
    return app
        .add_option_function<std::string>(
            name,
            [label, &ids](const std::string& text) {
                ids = parse_list<int32_t>(label, text, "token ids as in 1,2,3");
            },
            description)
        ->type_name("ID,ID,...");
}

CLI::Validator at_least(double minimum) {
    return {[minimum](std::string& text) {
                char* end = nullptr;
                const double value = std::strtod(text.c_str(), &end);
                const bool valid = end != text.c_str() && *end == '\0' && value >= minimum;
                return valid ? std::string()
                             : fmt::format("got '{}', expected a number of at least {}", text, minimum);
            },
            ""};
}

void require_utf8(const std::string& text, const char* name) {
    if (const size_t at = find_invalid_utf8(text); at != std::string::npos) {
        fail(ErrorCode::input, "text",
             "{} is not UTF-8: invalid byte 0x{:02x} at offset {} - convert it first", name,
             static_cast<unsigned char>(text[at]), at);
    }
}

}  // namespace refold::cli
