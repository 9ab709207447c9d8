// A model that the server answers with.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "serve/answer.h"
#include "serve/chat_prompt.h"
#include "serve/encoder_queue.h"
#include "serve/scheduler.h"

namespace refold {

struct ModelInfo {
    std::string name;                    // by which clients ask for the model
    std::string parent = {};             // of an adapter: the name of the model that it is for
    int64_t context = 0;                 // tokens of one sequence
    int64_t n_vocab = 0;                 // token ids are below it
    int64_t created = 0;                 // seconds since 1970
    uint64_t memory_bytes = 0;           // of weights and KV cache
    nlohmann::ordered_json description;  // for /status and the page
    std::string chat_template = {};      // in place of the model's own; empty: that one
};

class ServedModel {
public:
    // All outlive it. `scheduler` is null for a model that does not generate; `encoder` is null for a
    // decoder.
    ServedModel(Scheduler* scheduler, const Tokenizer& tokenizer, ModelInfo info,
                EncoderQueue* encoder = nullptr);
    // `base`, which outlives it, with an adapter of its engine, by a name of its own.
    ServedModel(const ServedModel& base, std::string name, int32_t adapter);
    ServedModel(const ServedModel&) = delete;
    ServedModel& operator=(const ServedModel&) = delete;

    // Throws ApiError (400) for a model that does not generate.
    Scheduler& generating() const;
    // Throws ApiError (400) for a decoder.
    EncoderQueue& encoding() const;
    void shutdown(std::chrono::milliseconds grace);
    // It has lost its device (a worker, say): all requests fail until it is loaded again.
    bool lost() const;

    const ModelInfo info;
    Scheduler* const scheduler;
    EncoderQueue* const encoder;
    const Tokenizer& tokenizer;
    const ChatPrompt chat;
    const PromptLimits limits;
    const std::shared_ptr<GrammarCompiler> grammars;
    const int32_t adapter = -1;  // of the scheduler's engine, for all requests; -1: none
    // The same model with adapters. Complete before there are requests.
    std::vector<std::unique_ptr<ServedModel>> adapted;

    // This model or one of `adapted`; null: no such name.
    ServedModel* named(const std::string& name);
};

enum class ModelState { unloaded, loading, loaded };
const char* model_state_name(ModelState state);

// A model as a server lists it.
struct ListedModel {
    ModelInfo info;  // what was known when it was last loaded; of a model that never was: name and `created`
    ModelState state = ModelState::unloaded;
    uint64_t loads = 0;                  // how often it was loaded
    std::shared_ptr<ServedModel> model;  // null unless it is loaded
};

// The models that a server has. Any thread.
class Models {
public:
    virtual ~Models() = default;
    // The model of that name, the first one for an empty name; loads it if need be, calling `check` now and
    // then while it waits, which may throw. Requests hold on to the model until they are answered. Throws
    // ApiError: 404 when there is none, 429 and 503 when it cannot be loaded.
    virtual std::shared_ptr<ServedModel> find(const std::string& name,
                                              const std::function<void()>& check) = 0;
    // At least one. Loads none; to be held for a short time only.
    virtual std::vector<ListedModel> list() = 0;
    // As Scheduler::shutdown() of all models.
    virtual void shutdown(std::chrono::milliseconds grace) = 0;

    // The model of that name in list(), as find() chooses it.
    ListedModel listed(const std::string& name);
};

std::vector<std::string> names_of(const std::vector<ListedModel>& models);
// 404: no model has that name, but those of `served`.
ApiError no_such_model(const std::string& name, const std::vector<std::string>& served);

}  // namespace refold
