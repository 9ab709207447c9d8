#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <functional>
#include <set>

#include "cli/help.h"
#include "cli/operation.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/sizes.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/text.h"
#include "engine/devices.h"
#include "hub/resolve.h"
#include "serve/local_models.h"
#include "serve/log_writer.h"
#include "serve/server.h"

namespace refold::cli::serve_verb {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

struct Arguments {
    std::vector<std::string> models, names, adapters;
    std::string folder, memory, chat_template;
    bool preload = false;
    LocalModelOptions model;
    DraftOptions drafts;
    ServerOptions server;
    OperationOptions operation;
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

// --lora NAME=PATH
NamedAdapter named_adapter(const std::string& text) {
    const size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == text.size())
        fail(ErrorCode::usage, "serve", "--lora: got '{}', expected NAME=PATH", text);
    return {text.substr(0, equals), text.substr(equals + 1)};
}

std::vector<ModelSource> sources_of(const Arguments& a) {
    if (!a.adapters.empty() && a.models.empty())
        fail(ErrorCode::usage, "serve", "--lora: name the model that the adapters are for");
    if (a.names.size() > a.models.size())
        fail(ErrorCode::usage, "serve", "--name: got {} names for {} models", a.names.size(),
             a.models.size());
    std::vector<ModelSource> out;
    std::set<std::string> names;
    const auto take = [&](const std::string& name) {
        if (!names.insert(name).second)
            fail(ErrorCode::usage, "serve",
                 "two models have the name '{}' - give the models other ones: --name NAME, for each in turn",
                 name);
    };
    const auto add = [&](const std::string& path, const std::string& name) {
        LocalModelOptions options = a.model;
        if (out.empty())
            for (const std::string& text : a.adapters) options.adapters.push_back(named_adapter(text));
        take(name);
        for (const NamedAdapter& adapter : options.adapters) take(adapter.name);
        out.push_back(local_model(path, name, options));
    };
    for (size_t i = 0; i < a.models.size(); ++i) {
        const std::string path = resolve_model(a.models[i]);
        add(path, i < a.names.size() ? a.names[i] : served_name(a.models[i], path));
    }
    if (!a.folder.empty())
        for (const std::string& path : models_in(a.folder)) add(path, served_name(path, path));
    if (out.empty()) fail(ErrorCode::usage, "serve", "no model - name one, or a folder with --models-dir");
    return out;
}

// Where models lie: of the devices, if they have all layers and say it, else of this machine.
uint64_t free_memory(const EngineOptions& options) {
    const uint64_t here = memory_of().available;
    if (options.gpu_layers >= 0 || options.device.empty() || options.device == kCpu) return here;
    uint64_t bytes = 0;
    try {
        for (const Device& device : find_devices(options.device, options.workers)) {
            if (device.is_cpu() || device.free == 0) return here;
            bytes += device.free;
        }
    } catch (const Error& error) {
        if (error.code() != ErrorCode::io) throw;
        return here;  // a worker that is away may be back when a model is loaded
    }
    return bytes;
}

// Without --memory, several models have most of what is free; one has no bound.
uint64_t memory_for(const Arguments& a, size_t models) {
    constexpr double kPart = 0.8;
    if (!a.memory.empty()) return parse_size(a.memory, "--memory").bytes;
    if (models == 1) return 0;
    return static_cast<uint64_t>(kPart * static_cast<double>(free_memory(a.model.engine)));
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

// Where weights and KV cache are, if not in this machine's memory alone.
std::string place_of(const EngineOptions& options) {
    if (options.device.empty() || options.device == kCpu) return "";
    const std::string name = options.device == "auto" ? find_devices("auto").front().name : options.device;
    return name == kCpu ? "" : ", on " + name;
}

void load_first(LoadedModels& models, const Arguments& a) {
    const auto all = models.list();
    // What is only a file of a folder may be no model that anybody wants.
    const size_t count = a.preload ? all.size() : a.models.empty() ? 0 : 1;
    for (size_t i = 0; i < count; ++i) models.load(all[i].info.name);
}

void say_listening(const Arguments& a, const Server& server, const std::vector<ListedModel>& models,
                   uint64_t memory) {
    const ModelInfo& first = models.front().info;
    const bool loaded = models.front().model != nullptr;
    const bool encodes = loaded && models.front().model->encoder != nullptr;
    const auto of_engine = [&](const char* what) { return first.description["engine"][what].get<int64_t>(); };
    std::vector<std::string> names;
    for (const ListedModel& model : models) names.push_back(model.info.name);
    if (a.report.json) {
        Json out = {{"event", "listening"},
                    {"url", server.url()},
                    {"port", server.port()},
                    {"pid", getpid()},
                    {"model", first.name},
                    {"models", names},
                    {"slots", a.model.scheduler.slots},
                    {"queue", a.model.scheduler.queue},
                    {"api_key", !a.server.api_keys.empty()}};
        if (memory > 0) out["memory"] = memory;
        if (loaded) {
            out["context"] = first.context;
            for (const auto& [what, number] : first.description["engine"].items()) out[what] = number;
            if (encodes) out["encoder"] = first.description["encoder"];
            out["description"] = first.description;
        }
        print_json(out, true);
        return;
    }
    if (a.report.quiet) return;
    std::string text = fmt::format("serving '{}' at {}\n", first.name, server.url());
    if (models.size() > 1)
        text += fmt::format("  models   {}\n           loaded when a request asks for them, in up to {}\n",
                            join(names, ", "), format_bytes(memory));
    if (encodes)
        text +=
            fmt::format("  memory   weights {}\n  encoder  {} of texts of up to {} tokens, {} threads\n",
                        format_bytes(first.description["memory"]["weight_bytes"].get<uint64_t>()),
                        first.description["encoder"].get<std::string>(), first.context, of_engine("threads"));
    else if (loaded)
        text += fmt::format(
            "  memory   weights {}, KV cache {} ({} tokens){}\n"
            "  slots    {} of up to {} tokens, {} more requests may wait; {} threads\n"
            "  batches  of up to {} rows, {}\n",
            format_bytes(first.description["memory"]["weight_bytes"].get<uint64_t>()),
            format_bytes(first.description["memory"]["kv_bytes"].get<uint64_t>()), of_engine("kv_tokens"),
            place_of(a.model.engine), a.model.scheduler.slots, first.context, a.model.scheduler.queue,
            of_engine("threads"), of_engine("batch_rows"),
            of_engine("loops") > 1 ? fmt::format("of any of {} loops", of_engine("loops"))
                                   : "of whole tokens");
    log("{}  access   {}\nCtrl-C ends it.", text,
        a.server.api_keys.empty() ? "no API key: whoever reaches this address may use it"
                                  : "with an API key");
}

// Returns after a signal and throws if the server itself fails; bad requests do neither.
void serve(Arguments& a) {
    LogWriter writer(STDERR_FILENO);
    const auto write = a.report.quiet ? std::function<void(const std::string&)>()
                                      : [&writer](const std::string& line) { writer.write(line); };
    Operation operation(a.operation, [&](const std::string& line) {
        if (write) write(line);
    });
    operation.set(a.server);
    a.model.scheduler.timeout = to_ms(a.timeout);
    a.model.note = write;
    if (!a.drafts.model.empty()) a.model.draft_model = resolve_model(a.drafts.model);
    a.model.scheduler.lookup = a.drafts.lookup;
    a.model.scheduler.draft_tokens = a.drafts.tokens;
    a.model.scheduler.draft_always = a.drafts.always;
    if (!a.chat_template.empty()) a.model.chat_template = read_text_file(a.chat_template);
    std::vector<ModelSource> sources = sources_of(a);
    constexpr int64_t kBusy = 4;  // models at a time: each costs a thread for every request
    a.server.models = std::min<int64_t>(static_cast<int64_t>(sources.size()), kBusy);
    const uint64_t memory = memory_for(a, sources.size());
    LoadedModels models(std::move(sources),
                        {.memory_bytes = memory,
                         .most_waiting = a.model.scheduler.slots + a.model.scheduler.queue,
                         .log = write});
    load_first(models, a);
    a.server.version = REFOLD_VERSION;
    a.server.slots = a.model.scheduler.slots;
    a.server.queue = a.model.scheduler.queue;
    a.server.timeout = a.model.scheduler.timeout;
    Server server(models, a.server, [&](const ServedRequest& request) {
        operation.log(request);
        if (write) write(log_line(request));
    });
    say_listening(a, server, models.list(), memory);
    operation.run(server);
    if (!a.report.quiet)
        writer.write(
            fmt::format("stopping; requests that run have {} s (a second signal ends at once)", a.grace));
    const bool stopped = server.shutdown(to_ms(a.grace));
    for (const ListedModel& model : models.list()) {
        // What adapters did is counted with their model.
        if (a.report.quiet || !model.model || model.model->scheduler == nullptr || !model.info.parent.empty())
            continue;
        const SchedulerStatus s = model.model->scheduler->status();
        writer.write(fmt::format("'{}': {} prompt tokens, {} generated", model.info.name, s.prompt_tokens,
                                 s.generated_tokens));
    }
    // Long work for a request that nobody waits for any more, which cannot be broken off.
    if (!stopped || models.loading()) std::_Exit(EXIT_SUCCESS);
}

void add_depth_options(CLI::App& app, SchedulerOptions& options, DraftOptions& drafts) {
    CLI::Option* rule = add_exit_options(app, options.exit);
    CLI::Option* exact =
        app.add_option("--exact", options.draft,
                       "Early loops draft up to N tokens where that is faster, all loops verify them: the "
                       "output is the same as without")
            ->type_name("N")
            ->check(at_least(1))
            ->excludes(rule);
    for (CLI::Option* option : add_draft_options(app, drafts)) option->excludes(exact)->excludes(rule);
    app.add_option("--draft-loop", options.draft_loop, "Loop that drafts are taken after")
        ->type_name("LOOP")
        ->check(at_least(1))
        ->capture_default_str()
        ->needs(exact);
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    app.add_option(
        "MODEL", a->models,
        "Models: .gguf files, Hugging Face directories, or names that `refold pull` has fetched. The "
        "first is loaded at once, others when a request asks for them");
    app.add_option("--models-dir", a->folder, "Serve all models of this folder as well")->type_name("FOLDER");
    app.add_option("--host", a->server.host, "Address to listen on; 0.0.0.0 for all")
        ->type_name("ADDRESS")
        ->capture_default_str();
    app.add_option("--port", a->server.port, "Port to listen on; 0: any that is free")
        ->type_name("PORT")
        ->check(CLI::Range(0, 65535).description(""))
        ->capture_default_str();
    app.add_option("--name", a->names, "Name that clients ask for; several are for the models in turn")
        ->type_name("NAME")
        ->allow_extra_args(false)
        ->default_str("MODEL's");
    app.add_option(
           "--memory", a->memory,
           "Most memory for weights and KV caches of all models, as 12GiB; models that are not in use "
           "are unloaded for others")
        ->type_name("BYTES")
        ->default_str("0.8 of what is free");
    app.add_option("--lora", a->adapters,
                   "Adapter (LoRA) of the first model, for requests that ask for NAME: a folder of PEFT or a "
                   "GGUF file; may be given several times")
        ->type_name("NAME=PATH")
        ->allow_extra_args(false);
    app.add_flag("--preload", a->preload, "Load all models at once");
    app.add_option("--chat-template", a->chat_template,
                   "Chat template in place of the models' own: a file of Jinja, as transformers reads it")
        ->type_name("FILE");
    add_operation_options(app, a->operation);
    app.add_option("--cors-origin", a->server.cors_origin,
                   "Origin whose web pages may ask, as https://example.org; * for any")
        ->type_name("ORIGIN");
    app.add_option("--slots", a->model.scheduler.slots, "Sequences that are generated at a time")
        ->type_name("N")
        ->check(at_least(1))
        ->capture_default_str();
    app.add_option("--queue", a->model.scheduler.queue, "Further ones that wait; more are refused (429)")
        ->type_name("N")
        ->check(at_least(0))
        ->capture_default_str();
    app.add_option("--batch", a->model.engine.chunk, "Most rows of one step of the engine")
        ->type_name("ROWS")
        ->check(at_least(1))
        ->capture_default_str();
    app.add_option("--prefill", a->model.scheduler.prefill_rows,
                   "Most prompt tokens in a step; fewer make others wait less")
        ->type_name("ROWS")
        ->check(at_least(1))
        ->capture_default_str();
    app.add_option(
           "--prefill-share", a->model.scheduler.prefill_share,
           "Most of the time that prompts take while others generate, whatever a row costs here; 1: no "
           "limit")
        ->type_name("SHARE")
        ->check(CLI::Range(0.01, 1.0).description(""))
        ->capture_default_str();
    app.add_option("--kv-tokens", a->model.engine.kv_tokens,
                   "Tokens of all sequences that the KV cache holds")
        ->type_name("TOKENS")
        ->check(at_least(1))
        ->default_str(fmt::format("{} contexts", kDefaultContexts));
    a->model.scheduler.prefixes = true;
    CLI::Option* none = app.add_flag_callback(
        "--no-prefix-cache", [a] { a->model.scheduler.prefixes = false; },
        "Run every prompt whole. Otherwise what the KV cache still has of earlier sequences is used again");
    app.add_option("--save-prefixes", a->model.prefix_folder,
                   "Keep what the KV cache has of earlier sequences in this folder when a model is unloaded, "
                   "and use it again when it is loaded: texts of clients")
        ->type_name("FOLDER")
        ->check(CLI::ExistingDirectory.description(""))
        ->excludes(none);
    add_engine_options(app, a->model.engine, "the model's, at most 4096");
    add_depth_options(app, a->model.scheduler, a->drafts);
    app.add_option("--timeout", a->timeout, "Most time of a request, waiting included")
        ->type_name("SECONDS")
        ->check(at_least(0.001))
        ->capture_default_str();
    app.add_option("--grace", a->grace, "Time that running requests have when the server is stopped")
        ->type_name("SECONDS")
        ->check(at_least(0))
        ->capture_default_str();
    add_report_options(app, a->report);
    add_examples(app, {"refold serve smollm2-135m-instruct", "refold serve minilm-l6",
                       "refold serve model.gguf --draft-model small.gguf",
                       "refold serve looped.gguf --slots 16 --exit probability --exit-threshold 0.9",
                       "refold serve small.gguf large.gguf --models-dir models --memory 12GiB",
                       "REFOLD_API_KEY=secret refold serve small.gguf --host 0.0.0.0 --port 8000"});
    return [a] { serve(*a); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"serve", VerbGroup::running,
                   "Answer requests over HTTP: OpenAI's interface, metrics, a page", declare};

}  // namespace refold::cli::serve_verb
