#include "cli/generate.h"

#include "generation/draft_model.h"
#include "generation/options.h"
#include "hub/resolve.h"

namespace refold::cli {

LoadedModel load_with_drafts(const std::string& path, const Tokenizer& tokenizer,
                             const EngineOptions& options, const DraftOptions& drafts) {
    LoadedModel out;
    out.engine = load_engine(path, options);
    out.decoding.lookup = drafts.lookup;
    out.decoding.draft_always = drafts.always;
    if (drafts.model.empty()) return out;
    out.draft = load_draft_model(resolve_model(drafts.model), options, *out.engine, tokenizer);
    out.decoding.draft_model = out.draft.get();
    out.decoding.draft_tokens = drafts.tokens;
    return out;
}

TextGenerator::TextGenerator(const LoadedModel& model, const Tokenizer& tokenizer,
                             const GenerationOptions& options)
    : generator_(*model.engine, tokenizer, {.decoding = model.decoding, .keeps_sequences = true}) {
    check_generation(options, model.engine->capabilities().n_vocab);
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
