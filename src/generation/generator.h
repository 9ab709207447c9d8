// The loop that generates: any number of prompts in the steps of an engine, pieces of prompts beside tokens
// that are decoded. One prompt in an engine with room for one sequence is the smallest case.
#pragma once

#include <functional>
#include <span>
#include <stop_token>
#include <vector>

#include "generation/continuation.h"
#include "generation/drafting.h"
#include "generation/prompt_queue.h"
#include "generation/request.h"
#include "generation/sequence.h"

namespace refold {

struct GeneratorOptions {
    // Sequences at a time; fewer where a step has fewer rows. More than 64 gain little.
    size_t sequences = 64;
    DecodingOptions decoding = {};
    // Prompts of later calls may begin with what earlier calls left in the engine, generated tokens included.
    // Saves time in a conversation. Results may then differ by rounding from those of a prompt read anew.
    bool keeps_sequences = false;
    DecodeTokens decode = {};
};

struct GeneratorCallbacks {
    // After every step, for each request with news. Returning false cancels the request.
    std::function<bool(size_t request, const GenerationEvent& event)> on_event = {};
    // A request has ended, in an order of the generator's own. Its sequence is still open in the engine and
    // has the first `complete` tokens of prompt and result.
    struct Ended {
        size_t request = 0;
        int32_t sequence = 0;
    };
    std::function<void(const Ended& ended, GenerationResult& result)> on_end = {};
    std::stop_token stop = {};
};

class Generator {
public:
    // `engine`, which has no sequences yet, and `tokenizer` outlive it. Throws Error(usage) for an exit
    // policy, or drafts, that the engine's loops do not allow.
    Generator(Engine& engine, const Tokenizer& tokenizer, GeneratorOptions options = {});

    // Answers all requests; results are in their order. With max_tokens 0 a prompt is only scored, where
    // GenerationRequest::prompt_logprobs asks for it.
    // Throws Error(usage) for options out of range and for a format that cannot be kept, Error(input) for a
    // prompt that is empty, has ids outside the vocabulary or does not fit the context, Error(interrupted)
    // after a signal.
    std::vector<GenerationResult> run(std::span<const GenerationRequest> requests,
                                      const GeneratorCallbacks& callbacks = {});
    GenerationResult run(const GenerationRequest& request, const GeneratorCallbacks& callbacks = {});

    // Forgets what keeps_sequences has kept.
    void forget() { sequences_.clear(); }

    // Of all tokens chosen so far.
    const DecodingCounts& counts() const { return counts_; }

private:
    class Run;

    Engine& engine_;
    const Tokenizer& tokenizer_;
    const GeneratorOptions options_;
    SharedSequences sequences_;
    DecodingCounts counts_;
    Drafting drafting_;
    GrammarCompiler grammars_;
};

}  // namespace refold
