#include "refold/generation.h"

#include "api/impl.h"

namespace refold {

std::vector<GenerationResult> generate(LanguageModel& model, std::span<const std::vector<int32_t>> prompts,
                                       const GenerationOptions& options, const PromptTextCallback& on_text,
                                       std::stop_token stop) {
    std::vector<GenerationRequest> requests(prompts.size());
    for (size_t p = 0; p < prompts.size(); ++p) {
        static_cast<GenerationOptions&>(requests[p]) = options;
        requests[p].prompt = prompts[p];
    }
    GeneratorCallbacks callbacks;
    callbacks.stop = std::move(stop);
    if (on_text) {
        callbacks.on_event = [&](size_t request, const GenerationEvent& event) {
            return event.text.empty() || on_text(request, event.text);
        };
    }
    return model.impl().generator().run(requests, callbacks);
}

GenerationResult generate(LanguageModel& model, std::span<const int32_t> prompt,
                          const GenerationOptions& options, const TextCallback& on_text,
                          std::stop_token stop) {
    const std::vector<int32_t> prompts[] = {{prompt.begin(), prompt.end()}};
    PromptTextCallback of_one;
    if (on_text) of_one = [&on_text](size_t, std::string_view text) { return on_text(text); };
    return std::move(generate(model, prompts, options, of_one, std::move(stop)).front());
}

GenerationResult generate(LanguageModel& model, const std::string& prompt, const GenerationOptions& options,
                          const TextCallback& on_text, std::stop_token stop) {
    return generate(model, model.tokenizer().encode(prompt, true, true), options, on_text, std::move(stop));
}

std::vector<GenerationResult> generate(LanguageModel& model, std::span<const std::string> prompts,
                                       const GenerationOptions& options, const PromptTextCallback& on_text,
                                       std::stop_token stop) {
    std::vector<std::vector<int32_t>> tokens;
    for (const std::string& prompt : prompts) tokens.push_back(model.tokenizer().encode(prompt, true, true));
    return generate(model, tokens, options, on_text, std::move(stop));
}

}  // namespace refold
