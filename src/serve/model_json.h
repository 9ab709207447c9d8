// A model as OpenAI's interface lists it.
#pragma once

#include "serve/described.h"

namespace refold {

// As llama.cpp's server has it.
inline nlohmann::ordered_json model_meta(const ModelInfo& info) {
    nlohmann::ordered_json out = {{"n_vocab", info.n_vocab}, {"n_ctx", info.context}};
    constexpr std::pair<const char*, const char*> kNumbers[] = {{"n_ctx_train", "/context_length"},
                                                                {"n_embd", "/n_embd"},
                                                                {"n_params", "/stored/parameters"},
                                                                {"size", "/stored/bytes"}};
    for (const auto& [name, pointer] : kNumbers)
        if (const uint64_t value = described(info, pointer); value > 0) out[name] = value;
    return out;
}

// The state is named as by llama.cpp's server; the context is not known before the model was loaded once.
inline nlohmann::ordered_json model_json(const ListedModel& model) {
    nlohmann::ordered_json out = {{"id", model.info.name},
                                  {"object", "model"},
                                  {"created", model.info.created},
                                  {"owned_by", "refold"}};
    if (!model.info.parent.empty()) out["parent"] = model.info.parent;  // as vLLM lists adapters
    if (model.info.context > 0) {
        out["max_model_len"] = model.info.context;
        out["meta"] = model_meta(model.info);
    }
    out["status"] = {{"value", model_state_name(model.state)}};
    return out;
}

}  // namespace refold
