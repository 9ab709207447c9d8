// Generation of one text at a time, for `run` and `chat`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "cli/options.h"
#include "engine/engine.h"
#include "generation/generator.h"

namespace refold::cli {

struct LoadedModel {
    std::unique_ptr<Engine> engine, draft;  // no draft: null
    DecodingOptions decoding;               // with the draft model
};
// The model at `path`, for one sequence, and what drafts for it. Throws as load_engine() and
// load_draft_model().
LoadedModel load_with_drafts(const std::string& path, const Tokenizer& tokenizer,
                             const EngineOptions& options, const DraftOptions& drafts);

class TextGenerator {
public:
    // `model.engine`, which has no sequences yet, and `tokenizer` outlive it.
    TextGenerator(const LoadedModel& model, const Tokenizer& tokenizer, const GenerationOptions& options);

    // `emit` gets whole characters as they come. Tokens that the prompt has in common with the previous
    // prompt and its continuation are not evaluated again.
    GenerationResult generate(std::vector<int32_t> prompt, const std::function<void(std::string_view)>& emit);
    // The next prompt is evaluated from its beginning.
    void forget() { generator_.forget(); }
    const DecodingCounts& counts() const { return generator_.counts(); }

private:
    Generator generator_;
    GenerationRequest request_;
};

// "end" (a token that ends the generation), "stop" (a stop text), "context" (full), else "limit".
const char* stop_reason(const GenerationResult& result);

}  // namespace refold::cli
