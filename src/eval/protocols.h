// Cuts texts into windows, by the protocols of perplexity.
#pragma once

#include <string>

#include "eval/perplexity.h"
#include "text/tokenizer.h"

namespace refold {

// "windows", "gptq", "llama.cpp", "lm-eval"
const char* protocol_name(PerplexityProtocol protocol);
// Throws Error(usage) with the nearest name.
PerplexityProtocol protocol_from_name(const std::string& name);
// One sentence that says which tokens the protocol scores.
std::string protocol_text(const PerplexityOptions& options);
// Default tokens per window: 1024, 2048, 512, or the model's context.
int64_t default_context(PerplexityProtocol protocol, int64_t model_context);

// Tokenizes `text`, the content of the file `name`, and cuts it. Throws Error(usage) for options that the
// protocol does not have or that are out of range; Error(input) for a text that is too short, for unreadable
// documents (split_documents()) and for a vocabulary without the token that the protocol begins with.
PerplexityPlan plan_perplexity(const PerplexityOptions& options, const Tokenizer& tokenizer,
                               const std::string& text, const std::string& name);

// windows: window w holds tokens [w * stride, w * stride + context). It scores every token except its first
// and those scored by an earlier window. Only full windows count, but a text shorter than one window is one
// short window. gptq: the same without a stride or a short window.
PerplexityPlan plan_windows(std::vector<int32_t> tokens, const PerplexityOptions& options);

// llama-perplexity (llama.cpp, tools/perplexity): chunks of `context` tokens, of which tokens [context / 2 +
// 1, context) are scored. `bos`, if the model asks for one, replaces each chunk's first token.
PerplexityPlan plan_llama_cpp(std::vector<int32_t> tokens, std::optional<int32_t> bos,
                              const PerplexityOptions& options);

// Appends one document of lm-evaluation-harness to `plan`: windows of up to `context` tokens, each predicting
// as many. The first begins with `prefix`; the last is filled up with tokens before those that it scores.
void add_rolling_windows(PerplexityPlan& plan, std::vector<int32_t> tokens, int32_t prefix,
                         const PerplexityItem& item);

}  // namespace refold
