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
#include "model/load.h"

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
    // Creates and removes a temporary file, as writing the output will.
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
    app.add_option("--device", options.device,
                   "What the model runs on: cpu, auto (a GPU where there is one), names that refold devices "
                   "lists, and "
                   "rpc:HOST:PORT of workers, separated by commas. With --engine torch: auto, cpu or cuda")
        ->type_name("NAME,...")
        ->check([](const std::string& name) {  // of a variable that is not set: not the CPU without a word
            return name.empty() ? "got no name, expected cpu, auto, or what refold devices lists" : "";
        })
        ->default_str("cpu; with --engine torch auto");
    app.add_option("--gpu-layers", options.gpu_layers,
                   "Layers of the model on the device, the last ones; the CPU runs the others")
        ->type_name("N")
        ->check(at_least(0))
        ->default_str("all");
    app.add_flag("--rpc-anywhere", options.workers.anywhere,
                 "Allow workers outside of the loopback and of private networks: the connection has no "
                 "encryption and no authentication");
    app.add_option_function<int64_t>(
           "--rpc-timeout",
           [&options](int64_t seconds) { options.workers.patience = std::chrono::seconds(seconds); },
           "How long a worker may take for an answer, or for a step, before it counts as lost")
        ->type_name("SECONDS")
        ->check(CLI::Range(1, 1000000))
        ->default_str("600");
    app.add_option("-c,--context", options.context, "Room for tokens in the KV cache")
        ->type_name("TOKENS")
        ->check(at_least(1))
        ->default_str(context_default);
    app.add_option("--rope-base", options.rope.base,
                   "Base of the rotary position embeddings, for texts longer than the model was trained for")
        ->type_name("NUMBER")
        ->check(at_least(1))
        ->default_str("the model's");
    app.add_option_function<std::string>(
           "--rope-scaling", [&options](const std::string& text) { parse_rope_scaling(text, options.rope); },
           "Scaling of the rotary position embeddings: none, linear:FACTOR, dynamic:FACTOR or yarn:FACTOR")
        ->type_name("TYPE:FACTOR")
        ->default_str("the model's");
    app.add_flag("--f32", options.f32, "Compute with float32 weights, activations and KV cache");
    app.add_option_function<std::string>(
           "--precision",
           [&options](const std::string& name) {
               options.precision = name == "bf16" ? Precision::bf16 : Precision::stored;
           },
           "Of products with weights in F16: bf16 rounds these and the inputs, which is faster where the CPU "
           "has products of BF16")
        ->type_name("NAME")
        ->check(CLI::IsMember({"stored", "bf16"}))
        ->default_str("stored");
    app.add_option_function<std::string>(
           "--kv", [&options](const std::string& type) { options.kv = *find_kv_type(type); },
           "Type of the KV cache (--f32 implies f32); q8_0 takes about half of f16's memory, q4_0 about a "
           "quarter")
        ->type_name("TYPE")
        ->check(CLI::IsMember({"f16", "f32", "q8_0", "q4_0"}))
        ->default_str("f16");
}

CLI::Option* add_kv_budget(CLI::App& app, double& budget) {
    return app
        .add_option("--kv-budget", budget,
                    "Rows of the KV cache per token of context; layers with a window keep all of theirs")
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
    app.add_option("--kv-recent", options.recent, "h2o: part of the rows for the most recent tokens")
        ->type_name("PART")
        ->check(CLI::Range(0.0, 1.0).description(""))
        ->capture_default_str();
    app.add_option("--kv-sinks", options.sinks, "recent: first tokens that always stay")
        ->type_name("TOKENS")
        ->check(at_least(0))
        ->capture_default_str();
}

CLI::Option* add_engine_kind(CLI::App& app, EngineKind& kind) {
    return app
        .add_option_function<std::string>(
            "--engine",
            [&kind](const std::string& name) {
                kind = name == "torch" ? EngineKind::torch : EngineKind::ggml;
            },
            "ggml, or torch: libtorch in float32, for comparison")
        ->type_name("NAME")
        ->check(CLI::IsMember({"ggml", "torch"}))
        ->default_str("ggml");
}

static void note_long_context(const Model& model, const Capabilities& can) {
    if (can.context > model.config.context_length) {
        log("note: '{}' was trained for {} tokens of context, {} are asked for", model.label,
            model.config.context_length, can.context);
    }
}

std::unique_ptr<Engine> load_engine(const std::string& path, const EngineOptions& options) {
    const Model model = load_model(path);
    auto engine = make_engine(model, options);
    note_long_context(model, engine->capabilities());
    return engine;
}

std::unique_ptr<SingleSequence> make_single_sequence(const std::string& path, const EngineOptions& options) {
    return make_single_sequence(load_model(path), options);
}

std::unique_ptr<SingleSequence> make_single_sequence(const Model& model, const EngineOptions& options) {
    auto sequence = std::make_unique<SingleSequence>(model, options);
    note_long_context(model, sequence->capabilities());
    return sequence;
}

// CLI11's own conversion reads an empty word as 0.
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
                   "When a token of a looped model exits after fewer loops. none; fixed: after --exit-loop; "
                   "probability, margin (over the second likeliest token), entropy: of the prediction, "
                   "compared with --exit-threshold; gate: the probability to have exited by the model's own "
                   "gate (Ouro), at least --exit-threshold{}",
                   oracle != nullptr ? "; oracle: once the likeliest token is the last loop's, for analysis"
                                     : ""))
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
           "Exit with a probability or margin of at least X, or an entropy (nats) of at most X; one number "
           "for all loops, or one for each but the last")
        ->type_name("X,...")
        ->needs(exit);
    app.add_option_function<std::string>(
           "--exit-kv", [&policy](const std::string& name) { policy.kv = exited_kv_from_name(name); },
           "Keys and values of the loops that an exited token skips. catch-up: the loops run later, for "
           "their keys and values only; propagate: projected from the residual stream that it exited with; "
           "share: "
           "those of the loop that it exited after")
        ->type_name("NAME")
        ->default_str(exited_kv_name(policy.kv))
        ->needs(exit);
    return exit;
}

// "ID=BIAS"
static std::pair<int32_t, double> parse_bias(const std::string& text) {
    const size_t split = text.find('=');
    int32_t token = -1;
    double bias = 0;
    const char* const end = text.data() + text.size();
    if (split != std::string::npos) {
        const auto id = std::from_chars(text.data(), text.data() + split, token);
        const auto value = std::from_chars(text.data() + split + 1, end, bias);
        if (id.ec == std::errc() && id.ptr == text.data() + split && value.ec == std::errc() &&
            value.ptr == end)
            return {token, bias};
    }
    throw CLI::ValidationError("--logit-bias", fmt::format("got '{}', expected ID=BIAS as in 42=-1.5", text));
}

static void add_distribution_options(CLI::App& app, SamplingOptions& options) {
    app.add_option("--top-k", options.top_k, "Choose among the K likeliest tokens; 0: all")
        ->type_name("K")
        ->capture_default_str();
    app.add_option("--top-p", options.top_p,
                   "Choose among the likeliest tokens that hold this much probability")
        ->type_name("P")
        ->default_str(fmt::format("{}", options.top_p));
    app.add_option("--min-p", options.min_p,
                   "Choose among tokens at least this likely, compared with the likeliest; 0: all")
        ->type_name("P")
        ->capture_default_str();
    app.add_option("--typical-p,--typical", options.typical_p,
                   "Choose among the tokens that are about as unlikely as the choice is uncertain and hold "
                   "this much probability (locally typical sampling); 1: all")
        ->type_name("P")
        ->capture_default_str();
    app.add_option("--mirostat", options.mirostat,
                   "Choose by Mirostat 1 or 2, in place of --top-k, --top-p, --min-p and --typical-p; 0: off")
        ->type_name("VERSION")
        ->capture_default_str();
    app.add_option("--mirostat-tau,--mirostat-ent", options.mirostat_tau,
                   "Mean information of the chosen tokens that Mirostat aims at")
        ->type_name("BITS")
        ->capture_default_str();
    app.add_option("--mirostat-eta,--mirostat-lr", options.mirostat_eta, "How fast Mirostat gets there")
        ->type_name("X")
        ->default_str(fmt::format("{}", options.mirostat_eta));
}

static void add_penalty_options(CLI::App& app, SamplingOptions& options) {
    app.add_option("--repeat-penalty", options.repetition_penalty,
                   "Divides positive logits of tokens that have occurred, multiplies negative ones; 1: off")
        ->type_name("X")
        ->capture_default_str();
    app.add_option("--presence-penalty", options.presence_penalty,
                   "Subtracted from logits of tokens that have occurred; 0: off")
        ->type_name("X")
        ->capture_default_str();
    app.add_option("--frequency-penalty", options.frequency_penalty,
                   "The same, as often as they have occurred; 0: off")
        ->type_name("X")
        ->capture_default_str();
    app.add_option("--repeat-last-n", options.penalty_last_n,
                   "Tokens of prompt and text that the penalties look at, the latest; -1: all")
        ->type_name("N")
        ->capture_default_str();
    app.add_option_function<std::vector<std::string>>(
           "--logit-bias",
           [&options](const std::vector<std::string>& given) {
               for (const std::string& text : given) {
                   const auto [token, bias] = parse_bias(text);
                   options.logit_bias[token] = bias;
               }
           },
           "Added to the logit of a token, -inf to ban it; may be repeated")
        ->type_name("ID=BIAS")
        ->allow_extra_args(false);
}

// One JSON Schema, from the command line itself or from a file.
static std::string schema_text(const std::string& given) {
    const size_t first = given.find_first_not_of(" \n\t");
    return first != std::string::npos && given[first] == '{' ? given : read_text_file(given);
}

static void add_format_options(CLI::App& app, OutputFormat& format) {
    using Kind = OutputFormat::Kind;
    // A name and what happens with its value; one of them may be given.
    std::vector<CLI::Option*> options;
    const auto add = [&](const char* name, const char* type, const char* description, auto take) {
        options.push_back(app.add_option_function<std::string>(name, take, description)->type_name(type));
    };
    add("--json-schema", "FILE|JSON", "The output is a JSON document that follows this schema",
        [&format](const std::string& given) {
            format = {.kind = Kind::json_schema, .text = schema_text(given)};
        });
    add("--grammar", "FILE", "The output follows this grammar (GBNF; its first rule is root)",
        [&format](const std::string& given) {
            format = {.kind = Kind::grammar, .text = read_text_file(given)};
        });
    add("--regex", "REGEX", "The whole output matches this regular expression",
        [&format](const std::string& given) { format = {.kind = Kind::regex, .text = given}; });
    options.push_back(app.add_option_function<std::vector<std::string>>(
                             "--choice",
                             [&format](const std::vector<std::string>& given) {
                                 format = {.kind = Kind::choice, .choices = given};
                             },
                             "The output is this text, or one of several when the option is repeated")
                          ->type_name("TEXT")
                          ->allow_extra_args(false));
    for (CLI::Option* one : options) {
        for (CLI::Option* other : options) {
            if (one != other) one->excludes(other);
        }
    }
}

void add_generation_options(CLI::App& app, GenerationOptions& options, const char* max_tokens) {
    app.add_option("-n,--max-tokens", options.max_tokens, max_tokens)
        ->type_name("N")
        ->check(at_least(1))
        ->capture_default_str();
    app.add_option("--stop", options.stop, "Text that ends the generation and is left out; may be repeated")
        ->type_name("TEXT")
        ->allow_extra_args(false);
    SamplingOptions& sampling = options.sampling;
    app.add_option("--temperature,--temp", sampling.temperature,
                   "Randomness of the choice of tokens; 0 takes the likeliest")
        ->type_name("X")
        ->capture_default_str();
    add_distribution_options(app, sampling);
    add_penalty_options(app, sampling);
    app.add_option("--seed", sampling.seed, "Seed of the choice")->type_name("N")->capture_default_str();
    add_format_options(app, options.format);
}

std::vector<CLI::Option*> add_draft_options(CLI::App& app, DraftOptions& options) {
    CLI::Option* lookup =
        app.add_option(
               "--lookup", options.lookup,
               "Draft up to N tokens from what followed the latest tokens earlier in the text, verified in "
               "one step: faster where text repeats, the same output; 0: off")
            ->type_name("N")
            ->check(at_least(0))
            ->capture_default_str();
    CLI::Option* model =
        app.add_option("--draft-model", options.model,
                       "Draft by this smaller model with the same vocabulary, in any form that MODEL takes; "
                       "MODEL verifies: the same output")
            ->type_name("MODEL")
            ->excludes(lookup);
    app.add_option("--draft-tokens", options.tokens,
                   "Most tokens that the draft model drafts at a time; fewer, or none, where that is faster")
        ->type_name("N")
        ->check(CLI::Range(1, 64).description(""))
        ->capture_default_str()
        ->needs(model);
    app.add_flag("--draft-always", options.always,
                 "Draft as many tokens as allowed. Otherwise times and accepted drafts decide, while text is "
                 "generated, how many pay, if any");
    return {lookup, model};
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
