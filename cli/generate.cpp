#include "cli/generate.h"

#include "generation/options.h"

namespace refold::cli {

TextGenerator::TextGenerator(Engine& engine, const Tokenizer& tokenizer, const GenerationOptions& options,
                             int64_t lookup)
    : generator_(engine, tokenizer, {.decoding = {.lookup = lookup}, .keeps_sequences = true}) {
    check_generation(options, engine.capabilities().n_vocab);
    static_cast<GenerationOptions&>(request_) = options;
}

GenerationResult TextGenerator::generate(std::vector<int32_t> prompt,
                                         const std::function<void(std::string_view)>& emit) {
    request_.prompt = std::move(prompt);
    return generator_.run(request_, {.on_event = [&](size_t, const GenerationEvent& event) {
                              if (!event.text.empty()) emit(event.text);
                              return true;
                          }});
}

const char* stop_reason(const GenerationResult& result) {
    if (!result.stop_text.empty()) return "stop";
    if (result.finished == FinishReason::stop) return "end";
    return result.context_full ? "context" : "limit";
}

}  // namespace refold::cli
