// Generation of one text at a time, for `run` and `chat`.
#pragma once

#include <functional>
#include <string_view>

#include "engine/engine.h"
#include "generation/generator.h"

namespace refold::cli {

class TextGenerator {
public:
    // `engine`, which has no sequences yet, and `tokenizer` outlive it.
    // `lookup`: see DecodingOptions.
    TextGenerator(Engine& engine, const Tokenizer& tokenizer, const GenerationOptions& options,
                  int64_t lookup = 0);

    // `emit` gets whole characters as they come. Tokens that the prompt has in common with the previous
    // prompt and its continuation are not evaluated again.
    GenerationResult generate(std::vector<int32_t> prompt, const std::function<void(std::string_view)>& emit);
    // The next prompt is evaluated from its beginning.
    void forget() { generator_.forget(); }

private:
    Generator generator_;
    GenerationRequest request_;
};

// "end" (a token that ends the generation), "stop" (a stop text), "context" (full), else "limit".
const char* stop_reason(const GenerationResult& result);

}  // namespace refold::cli
