#include "serve/local_models.h"

#include <algorithm>
#include <bit>
#include <filesystem>

#include "core/error.h"
#include "core/file_hash.h"
#include "encoder/text_encoder.h"
#include "engine/expected_memory.h"
#include "engine/warm_up.h"
#include "generation/draft_model.h"
#include "io/gguf_parts.h"
#include "model/accounting.h"
#include "model/load.h"
#include "serve/capacity.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

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

Json policies(const LocalModelOptions& options) {
    const SchedulerOptions& o = options.scheduler;
    return {{"exit", exit_rule_name(o.exit.rule)},
            {"exit_loop", o.exit.loop},
            {"exit_thresholds", o.exit.thresholds},
            {"exit_kv", exited_kv_name(o.exit.kv)},
            {"exact", o.draft},
            {"lookup", o.lookup},
            {"draft_model", options.draft_model}};
}

EngineOptions engine_options(const Model& model, const LocalModelOptions& options) {
    const SchedulerOptions& scheduler = options.scheduler;
    EngineOptions out = options.engine;
    out.sequences = 0;
    // Otherwise steps of whole tokens are faster: they read the output head once for all tokens.
    const bool verifies_whole = scheduler.lookup > 0 || !options.draft_model.empty();
    out.by_loop =
        scheduler.exit.active() || scheduler.draft > 0 || (!verifies_whole && faster_by_loop(model));
    out.chunk = std::max(out.chunk, scheduler.slots);
    return out;
}

ModelInfo describe(const Engine& engine, const Engine* draft, const Tokenizer& tokenizer,
                   const LocalModelOptions& options, ModelInfo info) {
    const Capabilities& can = engine.capabilities();
    const EngineMemory memory = engine.memory();
    info.context = std::min(can.context, can.kv_tokens);
    info.n_vocab = std::min<int64_t>(can.n_vocab, tokenizer.size());
    info.created = seconds_since_1970();
    info.memory_bytes = memory.weight_bytes + memory.kv_bytes;
    info.description["serving"] = policies(options);
    info.description["memory"] = {{"weight_bytes", memory.weight_bytes}, {"kv_bytes", memory.kv_bytes}};
    if (draft != nullptr) {
        const EngineMemory drafts = draft->memory();
        info.memory_bytes += drafts.weight_bytes + drafts.kv_bytes;
        info.description["memory"]["draft_model_bytes"] = drafts.weight_bytes + drafts.kv_bytes;
        info.description["memory"]["draft_model_shared_bytes"] = drafts.shared_bytes;
    }
    info.description["engine"] = {{"threads", can.threads},
                                  {"batch_rows", can.max_rows},
                                  {"loops", can.loops},
                                  {"kv_tokens", can.kv_tokens}};
    return info;
}

// Of all that a model's keys and values depend on: its files, and how the engine computes.
std::string prefix_key(const std::string& path, const Model& model, const EngineOptions& engine) {
    Json files = Json::array();
    if (model.source)
        for (const auto& file : model.source->files()) files.push_back(remembered_sha256(file->path()));
    if (fs::is_directory(path)) files.push_back(remembered_sha256(fs::path(path) / "config.json"));
    return Json{{"version", REFOLD_VERSION},
                {"little_endian", std::endian::native == std::endian::little},
                {"files", files},
                {"device", engine.device},
                {"gpu_layers", engine.gpu_layers},
                {"f32", engine.f32},
                {"precision", static_cast<int>(engine.precision)},
                {"kv", kv_type_name(engine.kv)},
                {"by_loop", engine.by_loop},
                {"shared", static_cast<int>(engine.shared)},
                {"factored", static_cast<int>(engine.factored)},
                {"rope", to_text(engine.rope)}}
        .dump();
}

// A file's name for a model's, in which anything may stand.
std::string file_name(const std::string& name) {
    std::string out;
    for (const char c : name) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                           c == '-' || c == '_' || (c == '.' && !out.empty());
        out += plain ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
    }
    return out + ".prefixes";
}

// All that a model is served with.
struct LocalModel {
    LocalModel(std::unique_ptr<Engine> made, const std::string& path, const LocalModelOptions& options,
               PrefixFile prefixes, ModelInfo info)
        : engine(std::move(made)),
          tokenizer(path),
          draft(make_draft(options)),
          scheduler(*engine, tokenizer, completed(options, std::move(prefixes))),
          served(&scheduler, tokenizer, describe(*engine, draft.get(), tokenizer, options, std::move(info))) {
    }

    std::unique_ptr<Engine> make_draft(const LocalModelOptions& options) const {
        if (options.draft_model.empty()) return nullptr;
        EngineOptions own = options.engine;
        own.sequences = 0;
        std::unique_ptr<Engine> out = load_draft_model(options.draft_model, own, *engine, tokenizer);
        warm_up(*out);
        return out;
    }
    SchedulerOptions completed(const LocalModelOptions& options, PrefixFile prefixes) const {
        SchedulerOptions out = options.scheduler;
        out.draft_model = draft.get();
        out.prefix_file = std::move(prefixes);
        out.note = options.note;
        return out;
    }

    const std::unique_ptr<Engine> engine;
    const Tokenizer tokenizer;
    const std::unique_ptr<Engine> draft;  // null: none
    Scheduler scheduler;
    ServedModel served;
};

// An encoder generates nothing: texts and pairs of texts in, vectors and scores out.
struct LocalEncoder {
    LocalEncoder(const Model& model, const std::string& path, const LocalModelOptions& options,
                 ModelInfo info)
        : tokenizer(path),
          encoder(model, tokenizer, options.engine),
          queue(encoder, options.scheduler.slots + options.scheduler.queue),
          served(nullptr, tokenizer, completed(std::move(info)), &queue) {}

    ModelInfo completed(ModelInfo info) const {
        const Capabilities& can = encoder.capabilities();
        const EngineMemory memory = encoder.memory();
        info.context = can.context;
        info.n_vocab = std::min<int64_t>(can.n_vocab, tokenizer.size());
        info.created = seconds_since_1970();
        info.memory_bytes = memory.weight_bytes;
        info.description["memory"] = {{"weight_bytes", memory.weight_bytes}, {"kv_bytes", 0}};
        info.description["encoder"] = encoder.scores() ? "reranking" : "embeddings";
        info.description["engine"] = {{"threads", can.threads}};
        return info;
    }

    const Tokenizer tokenizer;
    TextEncoder encoder;
    EncoderQueue queue;
    ServedModel served;
};

// What options say of generating cannot be meant for an encoder.
void check_encodes(const std::string& name, const LocalModelOptions& options) {
    const SchedulerOptions& scheduler = options.scheduler;
    if (scheduler.exit.active() || scheduler.draft > 0 || scheduler.lookup > 0 ||
        !options.draft_model.empty() || options.engine.kv_tokens > 0)
        fail(ErrorCode::usage, "serve",
             "'{}' is an encoder: it has no KV cache, and generates nothing that could exit early or be "
             "drafted",
             name);
}

std::shared_ptr<ServedModel> load(const std::string& path, const std::string& name,
                                  const LocalModelOptions& options) {
    ModelInfo info;
    info.name = name;
    info.chat_template = options.chat_template;
    std::unique_ptr<Engine> engine;
    std::vector<int32_t> adapters;
    PrefixFile prefixes;
    {
        const Model model = load_model(path);
        if (!model.config.causal) {
            check_encodes(name, options);
            info.description = describe(model);
            const auto made = std::make_shared<LocalEncoder>(model, path, options, std::move(info));
            return {made, &made->served};
        }
        check_exit_policy(options.scheduler.exit, model.topology.loops,
                          model.topology.globals.contains(Slot::exit_gate));
        const EngineOptions own = engine_options(model, options);
        // Before the weights are read: the files may be replaced meanwhile.
        if (!options.prefix_folder.empty())
            prefixes = {fs::path(options.prefix_folder) / file_name(name), prefix_key(path, model, own)};
        engine = make_engine(model, own);
        for (const NamedAdapter& adapter : options.adapters)
            adapters.push_back(engine->add_adapter(load_adapter(adapter.path, model)));
        warm_up(*engine, adapters);
        const std::string note = check_capacity({.slots = options.scheduler.slots,
                                                 .context = engine->capabilities().context,
                                                 .kv_tokens = options.engine.kv_tokens,
                                                 .trained = model.config.context_length});
        if (!note.empty() && options.note) options.note(note);
        info.description = describe(model);
    }
    const auto made =
        std::make_shared<LocalModel>(std::move(engine), path, options, std::move(prefixes), std::move(info));
    for (size_t i = 0; i < adapters.size(); ++i)
        made->served.adapted.push_back(
            std::make_unique<ServedModel>(made->served, options.adapters[i].name, adapters[i]));
    return {made, &made->served};
}

}  // namespace

ModelSource local_model(const std::string& path, const std::string& name, const LocalModelOptions& options) {
    std::vector<std::string> adapters;
    for (const NamedAdapter& adapter : options.adapters) adapters.push_back(adapter.name);
    return {.name = name,
            .adapters = std::move(adapters),
            .needs =
                [=] {
                    const Model model = load_model(path);
                    const EngineOptions own =
                        model.config.causal ? engine_options(model, options) : options.engine;
                    const EngineMemory memory = expected_memory(model, own);
                    const EngineMemory draft = options.draft_model.empty()
                                                   ? EngineMemory{}
                                                   : expected_memory(load_model(options.draft_model), own);
                    return memory.weight_bytes + memory.kv_bytes + draft.weight_bytes + draft.kv_bytes;
                },
            .load = [=] { return load(path, name, options); }};
}

std::vector<std::string> models_in(const std::string& folder) {
    std::vector<std::string> out;
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
        const fs::path& path = entry.path();
        // The first one of several parts stands for the model.
        const bool is_model = entry.is_directory()
                                  ? fs::exists(path / "config.json")
                                  : path.extension() == ".gguf" && gguf_part_name(path).number == 1;
        if (is_model) out.push_back(path);
    }
    if (error) fail(ErrorCode::usage, "serve", "{}: {}", folder, error.message());
    if (out.empty())
        fail(ErrorCode::usage, "serve", "{}: there is no .gguf file and no Hugging Face directory", folder);
    std::ranges::sort(out);
    return out;
}

}  // namespace refold
