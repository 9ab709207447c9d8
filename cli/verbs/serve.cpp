#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <thread>

#include "cli/exits.h"
#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "engine/engine.h"
#include "exit/exit_policy.h"
#include "hub/resolve.h"
#include "model/accounting.h"
#include "model/load.h"
#include "serve/api_keys.h"
#include "serve/capacity.h"
#include "serve/log_writer.h"
#include "serve/server.h"

namespace refold::cli {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

struct Arguments {
    std::string model, name, key_file;
    EngineOptions engine;
    SchedulerOptions scheduler;
    ServerOptions server;
    double timeout = 600, grace = 30;  // seconds
    ReportOptions report;
};

milliseconds to_ms(double seconds) { return milliseconds(static_cast<int64_t>(1000 * seconds)); }

// The model's name in the API: the argument itself if it is a name, the last part of a path.
std::string served_name(const std::string& argument, const std::string& path) {
    if (!std::filesystem::exists(argument)) return argument;
    const std::filesystem::path p = std::filesystem::canonical(path);
    return std::filesystem::is_directory(p) ? p.filename() : p.stem();
}

// The description of the model that the page shows.
Json describe(const Model& model) {
    const Accounting costs = account(model);
    const auto cost = [](const Cost& c) {
        return Json{{"parameters", c.parameters},
                    {"bytes", c.bytes},
                    {"kv_bytes_per_token", c.kv_bytes_per_token},
                    {"flops_per_token", c.flops_per_token}};
    };
    return {{"architecture", model.config.family}, {"layers", model.topology.layers.size()},
            {"loops", model.topology.loops},       {"n_embd", model.config.n_embd},
            {"n_head", model.config.n_head},       {"n_head_kv", model.config.n_head_kv},
            {"n_vocab", model.config.n_vocab},     {"context_length", model.config.context_length},
            {"tensors", model.tensors.size()},     {"shares", model.has_sharing()},
            {"stored", cost(costs.model)},         {"without_sharing", cost(costs.dense)}};
}

Json policies(const Arguments& a) {
    return {{"exit", exit_rule_name(a.scheduler.exit.rule)},
            {"exit_loop", a.scheduler.exit.loop},
            {"exit_thresholds", a.scheduler.exit.thresholds},
            {"exit_kv", exited_kv_name(a.scheduler.exit.kv)},
            {"exact", a.scheduler.draft},
            {"lookup", a.scheduler.lookup}};
}

std::string log_line(const ServedRequest& r) {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    char time[16] = "";
    std::strftime(time, sizeof time, "%H:%M:%S", &local);
    return fmt::format("{} {} {} {} {} {:.3f} s{}", time, r.client, r.method.empty() ? "-" : r.method,
                       r.path.empty() ? "-" : r.path, r.status, r.seconds,
                       r.prompt_tokens + r.completion_tokens == 0
                           ? ""
                           : fmt::format(", {} + {} tokens", r.prompt_tokens, r.completion_tokens));
}

void set_keys(Arguments& a) {
    if (const char* key = std::getenv("REFOLD_API_KEY"); key != nullptr && *key != '\0')
        a.server.api_keys.emplace_back(key);
    if (a.key_file.empty()) return;
    for (std::string& key : read_api_keys(a.key_file)) a.server.api_keys.push_back(std::move(key));
}

// Returns after a signal and throws if the server itself fails; bad requests do neither.
void serve(Arguments& a) {
    set_keys(a);
    const std::string path = resolve_model(a.model);
    ServedModel served;
    std::unique_ptr<Engine> engine;
    {
        const Model model = load_model(path);
        a.engine.sequences = 0;
        // Otherwise steps of whole tokens are faster: they read the output head once for all tokens.
        a.engine.by_loop = a.scheduler.exit.active() || a.scheduler.draft > 0 || faster_by_loop(model);
        check_exits(a.scheduler.exit, model);
        a.engine.chunk = std::max(a.engine.chunk, a.scheduler.slots);
        engine = make_engine(model, a.engine);
        const std::string note = check_capacity({.slots = a.scheduler.slots,
                                                 .context = engine->capabilities().context,
                                                 .kv_tokens = a.engine.kv_tokens,
                                                 .trained = model.config.context_length});
        if (!note.empty() && !a.report.quiet) log("{}", note);
        served.description = describe(model);
    }
    const Tokenizer tokenizer(path);
    served.name = a.name.empty() ? served_name(a.model, path) : a.name;
    served.context = std::min(engine->capabilities().context, engine->capabilities().kv_tokens);
    served.n_vocab = std::min<int64_t>(engine->capabilities().n_vocab, tokenizer.size());
    served.version = REFOLD_VERSION;
    served.created = std::time(nullptr);
    served.description["serving"] = policies(a);
    const EngineMemory memory = engine->memory();
    served.description["memory"] = {{"weight_bytes", memory.weight_bytes}, {"kv_bytes", memory.kv_bytes}};
    const Json description = served.description;
    const std::string name = served.name;

    a.scheduler.timeout = to_ms(a.timeout);
    a.server.slots = a.scheduler.slots;
    a.server.queue = a.scheduler.queue;
    a.server.timeout = a.scheduler.timeout;
    LogWriter writer(STDERR_FILENO);
    Scheduler scheduler(*engine, tokenizer, a.scheduler);
    Server server(
        scheduler, tokenizer, std::move(served), a.server,
        a.report.quiet ? std::function<void(const ServedRequest&)>()
                       : [&](const ServedRequest& request) { writer.write(log_line(request)); });
    if (a.report.json) {
        print_json({{"event", "listening"},
                    {"url", server.url()},
                    {"port", server.port()},
                    {"pid", getpid()},
                    {"model", name},
                    {"context", std::min(engine->capabilities().context, engine->capabilities().kv_tokens)},
                    {"slots", a.scheduler.slots},
                    {"queue", a.scheduler.queue},
                    {"loops", engine->capabilities().loops},
                    {"batch_rows", engine->capabilities().max_rows},
                    {"kv_tokens", engine->capabilities().kv_tokens},
                    {"threads", engine->capabilities().threads},
                    {"api_key", !a.server.api_keys.empty()},
                    {"description", description}},
                   true);
    } else if (!a.report.quiet) {
        log("serving '{}' at {}\n"
            "  memory   weights {}, KV cache {} ({} tokens)\n"
            "  slots    {} of up to {} tokens, {} more requests may wait; {} threads\n"
            "  batches  of up to {} rows, {}\n"
            "  access   {}\n"
            "Ctrl-C ends it.",
            name, server.url(), format_bytes(memory.weight_bytes), format_bytes(memory.kv_bytes),
            engine->capabilities().kv_tokens, a.scheduler.slots,
            std::min(engine->capabilities().context, engine->capabilities().kv_tokens), a.scheduler.queue,
            engine->capabilities().threads, engine->capabilities().max_rows,
            engine->capabilities().loops > 1 ? fmt::format("of any of {} loops", engine->capabilities().loops)
                                             : "of whole tokens",
            a.server.api_keys.empty() ? "no API key: whoever reaches this address may use it"
                                      : "with an API key");
    }
    while (!interrupted()) std::this_thread::sleep_for(milliseconds(50));
    if (!a.report.quiet)
        writer.write(
            fmt::format("stopping; requests that run have {} s (a second signal ends at once)", a.grace));
    const bool stopped = server.shutdown(to_ms(a.grace));
    if (!a.report.quiet) {
        const SchedulerStatus s = scheduler.status();
        writer.write(
            fmt::format("served {} prompt tokens and generated {}", s.prompt_tokens, s.generated_tokens));
    }
    // Long work for a request that nobody waits for any more, which cannot be broken off.
    if (!stopped) std::_Exit(EXIT_SUCCESS);
}

void add_depth_options(CLI::App& app, SchedulerOptions& options) {
    CLI::Option* rule = add_exit_options(app, options.exit);
    CLI::Option* exact =
        app.add_option("--exact", options.draft,
                       "Early loops draft up to N tokens, all loops verify them: the output is the same as "
                       "without")
            ->type_name("N")
            ->check(at_least(1))
            ->excludes(rule);
    add_lookup(app, options.lookup)->excludes(exact)->excludes(rule);
    app.add_option("--draft-loop", options.draft_loop, "Loop that drafts are taken after")
        ->type_name("LOOP")
        ->check(at_least(1))
        ->capture_default_str()
        ->needs(exact);
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_model(app, a->model)->required();
    app.add_option("--host", a->server.host, "Address to listen on; 0.0.0.0 for all")
        ->type_name("ADDRESS")
        ->capture_default_str();
    app.add_option("--port", a->server.port, "Port to listen on; 0: any that is free")
        ->type_name("PORT")
        ->check(CLI::Range(0, 65535).description(""))
        ->capture_default_str();
    app.add_option("--name", a->name, "Name that clients ask for")->type_name("NAME")->default_str("MODEL's");
    app.add_option(
           "--api-key", a->server.api_keys,
           "Key that clients must show; also from the variable REFOLD_API_KEY. Others on this machine "
           "see the command line: better a file")
        ->type_name("KEY")
        ->expected(1);
    app.add_option("--api-key-file", a->key_file, "Keys that clients must show one of, one per line")
        ->type_name("FILE");
    app.add_option("--cors-origin", a->server.cors_origin,
                   "Origin whose web pages may ask, as https://example.org; * for any")
        ->type_name("ORIGIN");
    app.add_option("--slots", a->scheduler.slots, "Sequences that are generated at a time")
        ->type_name("N")
        ->check(at_least(1))
        ->capture_default_str();
    app.add_option("--queue", a->scheduler.queue, "Further ones that wait; more are refused (429)")
        ->type_name("N")
        ->check(at_least(0))
        ->capture_default_str();
    app.add_option("--batch", a->engine.chunk, "Most rows of one step of the engine")
        ->type_name("ROWS")
        ->check(at_least(1))
        ->capture_default_str();
    app.add_option("--prefill", a->scheduler.prefill_rows,
                   "Most prompt tokens in a step; fewer make others wait less")
        ->type_name("ROWS")
        ->check(at_least(1))
        ->capture_default_str();
    app.add_option("--kv-tokens", a->engine.kv_tokens, "Tokens of all sequences that the KV cache holds")
        ->type_name("TOKENS")
        ->check(at_least(1))
        ->default_str("8 contexts");
    a->scheduler.prefixes = true;
    app.add_flag_callback(
        "--no-prefix-cache", [a] { a->scheduler.prefixes = false; },
        "Run every prompt whole. Otherwise what the KV cache still has of earlier sequences is used again");
    add_engine_options(app, a->engine, "the model's, at most 4096");
    add_depth_options(app, a->scheduler);
    app.add_option("--timeout", a->timeout, "Most time of a request, waiting included")
        ->type_name("SECONDS")
        ->check(at_least(0.001))
        ->capture_default_str();
    app.add_option("--grace", a->grace, "Time that running requests have when the server is stopped")
        ->type_name("SECONDS")
        ->check(at_least(0))
        ->capture_default_str();
    add_report_options(app, a->report);
    add_examples(app, {"refold serve smollm2-135m-instruct",
                       "refold serve looped.gguf --slots 16 --exit probability --exit-threshold 0.9",
                       "REFOLD_API_KEY=secret refold serve small.gguf --host 0.0.0.0 --port 8000"});
    return [a] { serve(*a); };
}

}  // namespace

extern const Verb serve_verb;
const Verb serve_verb = {"serve", VerbGroup::running,
                         "Answer requests over HTTP: OpenAI's interface, metrics, a page", declare};

}  // namespace refold::cli
