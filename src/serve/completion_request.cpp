#include "serve/completion_request.h"

namespace refold {

CompletionRequest parse_completion_request(std::string_view body) {
    Fields fields(body);
    CompletionRequest out;
    read_generation(fields, out);
    out.prompts = read_prompts(fields, "prompt", kMostChoices);
    out.echo = fields.boolean("echo", false);
    out.max_tokens = fields.integer("max_tokens", 0, INT64_MAX);
    if (fields.has("max_completion_tokens"))
        refuse("max_completion_tokens", "a field of chat completions - use 'max_tokens'");
    out.options.logprobs = static_cast<int>(fields.integer("logprobs", 0, kMostLogprobs).value_or(-1));
    out.best_of = fields.integer("best_of", 1, 128).value_or(out.n);
    if (out.best_of < out.n) refuse("best_of", "got {}, expected at least 'n' ({})", out.best_of, out.n);
    if (out.best_of > out.n && out.stream)
        refuse("best_of", "more than 'n' are only given at once - leave out 'stream'");
    if (static_cast<int64_t>(out.prompts.size()) * out.best_of > kMostChoices)
        refuse(out.best_of > out.n ? "best_of" : "n",
               "{} prompts of {} choices each, expected at most {} choices", out.prompts.size(), out.best_of,
               kMostChoices);
    out.suffix = fields.text("suffix");
    if (!out.suffix.empty() && out.echo)
        refuse("echo", "the prompt is not repeated where a 'suffix' follows the answer");
    fields.refuse_the_rest();
    return out;
}

}  // namespace refold
