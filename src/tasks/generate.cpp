#include "tasks/generate.h"

#include <algorithm>

#include "core/error.h"
#include "tasks/python_text.h"

namespace refold {
namespace {

// Appends `prompt` to what the engine shares with it, at least its last token, and returns the logits after
// it.
std::span<const float> read_prompt(Engine& engine, std::span<const int32_t> prompt,
                                   std::vector<int32_t>& in_engine) {
    const auto differs = std::mismatch(in_engine.begin(), in_engine.end(), prompt.begin(), prompt.end());
    const auto shared = std::min(static_cast<size_t>(differs.second - prompt.begin()), prompt.size() - 1);
    engine.truncate(static_cast<int64_t>(shared));
    in_engine.assign(prompt.begin(), prompt.end());
    return engine.evaluate(prompt.subspan(shared));
}

}  // namespace

std::string before_stops(std::string text, std::span<const std::string> until) {
    for (const std::string& stop : until)
        if (!stop.empty()) text.resize(std::min(text.size(), text.find(stop)));
    return text;
}

std::string greedy_text(const Tokenizer& tokenizer, const GenerationSettings& settings, int32_t first,
                        const std::function<int32_t(int32_t)>& next) {
    std::vector<int32_t> tokens;
    std::string text;
    for (int32_t token = first; static_cast<int64_t>(tokens.size()) < settings.max_tokens;
         token = next(token)) {
        if (tokenizer.is_end_of_generation(token)) break;
        tokens.push_back(token);
        text = valid_utf8(tokenizer.decode(tokens, false));
        if (before_stops(text, settings.until).size() < text.size()) break;
        if (static_cast<int64_t>(tokens.size()) == settings.max_tokens) break;
    }
    return before_stops(std::move(text), settings.until);
}

void generate_until(Engine& engine, const Tokenizer& tokenizer, Requests requests,
                    const GenerationSettings& settings, const Generated& generated) {
    if (engine.evicts()) {
        fail(ErrorCode::usage, "tasks",
             "a KV cache that evicts rows cannot go back to what prompts have in common - leave out "
             "--kv-policy");
    }
    std::vector<std::span<const int32_t>> prompts(requests.size());
    std::transform(requests.begin(), requests.end(), prompts.begin(),
                   [](const Request* r) { return std::span<const int32_t>(r->tokens); });
    engine.truncate(0);
    std::vector<int32_t> in_engine;
    for (const size_t index : order_by_prefix(prompts)) {
        const auto best = [](std::span<const float> logits) {
            return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
        };
        const int32_t first = best(read_prompt(engine, prompts[index], in_engine));
        generated(index, greedy_text(tokenizer, settings, first, [&](int32_t token) {
                      in_engine.push_back(token);
                      return best(engine.evaluate(std::span(&token, 1)));
                  }));
    }
}

}  // namespace refold
