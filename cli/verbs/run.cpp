#include <chrono>

#include "cli/generate.h"
#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/text.h"
#include "generation/options.h"
#include "hub/resolve.h"

namespace refold::cli::run_verb {
namespace {

struct Arguments {
    std::string model, prompt, file;
    GenerationOptions generation;
    DraftOptions drafts;
    EngineOptions engine;
    ReportOptions report;
};

std::string read_prompt(const Arguments& a) {
    if (!a.file.empty()) return read_text_file(a.file);
    require_utf8(a.prompt, "--prompt");
    return a.prompt;
}

void run(const Arguments& a) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    const std::string prompt = read_prompt(a);
    check_generation(a.generation);  // before anything is loaded
    const std::string path = resolve_model(a.model);
    const Tokenizer tokenizer(path);
    const LoadedModel model = load_with_drafts(path, tokenizer, a.engine, a.drafts);
    const auto& engine = model.engine;
    const std::vector<int32_t> tokens = tokenizer.encode(prompt, true, true);
    if (tokens.empty())
        fail(ErrorCode::usage, "run", "the prompt is empty, and the model starts with no token of its own");
    if (static_cast<int64_t>(tokens.size()) > engine->capabilities().context) {
        fail(ErrorCode::input, "run",
             "the prompt has {} tokens, the context holds {} - raise --context or shorten the prompt",
             tokens.size(), engine->capabilities().context);
    }
    const double load = elapsed();
    TextGenerator generator(model, tokenizer, a.generation);
    const GenerationResult g = generator.generate(tokens, [&](std::string_view text) {
        if (!a.report.json) print(text);
    });
    const DecodingCounts& counts = generator.counts();
    const double first_token = load + g.prefill_seconds;
    if (a.report.json) {
        print_json({{"model", path},
                    {"prompt", prompt},
                    {"text", g.text},
                    {"tokens", g.tokens},
                    {"stop_reason", stop_reason(g)},
                    {"prompt_tokens", tokens.size()},
                    {"generated_tokens", g.tokens.size()},
                    {"load_seconds", load},
                    {"prefill_seconds", g.prefill_seconds},
                    {"decode_seconds", g.decode_seconds},
                    {"first_token_seconds", first_token},
                    {"prefill_tokens_per_s", g.prefill_tokens_per_s()},
                    {"decode_tokens_per_s", g.decode_tokens_per_s()},
                    {"drafted", counts.drafted},
                    {"accepted", counts.accepted},
                    {"temperature", a.generation.sampling.temperature},
                    {"seed", a.generation.sampling.seed},
                    {"threads", engine->capabilities().threads},
                    {"kv_policy", kv_policy_name(a.engine.eviction.policy)},
                    {"kv_budget", a.engine.eviction.budget},
                    {"kv_bytes", engine->memory().kv_bytes}});
        return;
    }
    print("\n");
    if (a.report.quiet) return;
    log("prefill {} tokens at {:.1f} tokens/s, decode {} tokens at {:.1f} tokens/s, first token after {:.0f} "
        "ms "
        "({:.0f} ms of it loading), {}stopped by {}",
        tokens.size(), g.prefill_tokens_per_s(), g.tokens.size(), g.decode_tokens_per_s(), 1e3 * first_token,
        1e3 * load,
        counts.drafted > 0 ? fmt::format("{} of {} drafts accepted, ", counts.accepted, counts.drafted) : "",
        stop_reason(g));
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_model(app, a->model)->required();
    auto* prompt = app.add_option("-p,--prompt", a->prompt,
                                  "Text to continue, taken as it is (see chat for the model's template)")
                       ->type_name("TEXT");
    auto* file = app.add_option("-f,--file", a->file, "Read the prompt from a file")
                     ->type_name("FILE")
                     ->excludes(prompt);
    add_generation_options(app, a->generation, "Most tokens to generate");
    add_draft_options(app, a->drafts);
    app.add_flag("--ignore-eos", a->generation.ignore_eos, "Do not stop at an end-of-generation token");
    add_engine_options(app, a->engine, "the model's, at most 4096");
    add_eviction_options(app, a->engine.eviction);
    add_report_options(app, a->report);
    add_examples(app, {"refold run smollm2-135m-instruct -p \"The capital of France is\" -n 32",
                       "refold run small.gguf -f prompt.txt --temperature 0.8 --top-k 50 --seed 7",
                       "refold run model.gguf -f prompt.txt --draft-model small.gguf",
                       "refold run small.gguf -p \"Once upon a time\" --json --quiet"});
    return [a, prompt, file] {
        if (prompt->count() + file->count() == 0)
            fail(ErrorCode::usage, "run", "give a prompt by --prompt or --file");
        run(*a);
    };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"run", VerbGroup::running, "Continue a text", declare};

}  // namespace refold::cli::run_verb
