#include "serve/prompt_field.h"

namespace refold {

std::vector<ApiPrompt> read_prompts(Fields& fields, const char* field, int64_t most) {
    const BodyValue* value = fields.find(field);
    if (value == nullptr) refuse(field, "missing - give a text, token ids, or an array of them");
    std::vector<ApiPrompt> prompts;
    if (value->is_string()) {
        prompts.emplace_back(value->get<std::string>());
    } else if (value->is_array() && !value->empty() && value->front().is_number()) {
        prompts.emplace_back(token_ids(*value, field));
    } else if (value->is_array()) {
        if (static_cast<int64_t>(value->size()) > most)
            refuse(field, "got {} of them, expected at most {}", value->size(), most);
        for (const BodyValue& prompt : *value) {
            if (prompt.is_string())
                prompts.emplace_back(prompt.get<std::string>());
            else if (prompt.is_array())
                prompts.emplace_back(token_ids(prompt, field));
            else
                refuse(field, "got {} in the array, expected a text or an array of token ids", shown(prompt));
        }
    } else {
        refuse(field, "got {}, expected a text, token ids, or an array of them", shown(*value));
    }
    if (prompts.empty()) refuse(field, "an empty array - give at least one");
    return prompts;
}

void check_ids(const std::vector<int32_t>& ids, int64_t n_vocab, const char* field) {
    for (const int32_t id : ids)
        if (id >= n_vocab) refuse(field, "got the token id {}, the vocabulary has {}", id, n_vocab);
}

}  // namespace refold
