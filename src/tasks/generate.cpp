#include "tasks/generate.h"

#include "tasks/python_text.h"

namespace refold {

std::vector<GenerationRequest> generation_requests(Requests requests, const GenerationSettings& settings) {
    std::vector<GenerationRequest> out(requests.size());
    for (size_t r = 0; r < requests.size(); ++r) {
        out[r].prompt = requests[r]->tokens;
        out[r].max_tokens = settings.max_tokens;
        out[r].stop = settings.until;
    }
    return out;
}

DecodeTokens task_decoder(const Tokenizer& tokenizer) {
    return
        [&tokenizer](std::span<const int32_t> tokens) { return valid_utf8(tokenizer.decode(tokens, false)); };
}

void generate_until(Engine& engine, const Tokenizer& tokenizer, Requests requests,
                    const GenerationSettings& settings, const Generated& generated) {
    GeneratorOptions options;
    options.decode = task_decoder(tokenizer);
    Generator(engine, tokenizer, options)
        .run(generation_requests(requests, settings),
             {.on_end = [&](const GeneratorCallbacks::Ended& ended, const GenerationResult& result) {
                 generated(ended.request, result.text);
             }});
}

}  // namespace refold
