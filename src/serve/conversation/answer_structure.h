// What an answer in parts may look like, as a structure for XGrammar.
#pragma once

#include <vector>

#include "grammar/grammar.h"
#include "refold/output_format.h"
#include "serve/conversation/answer_parser.h"
#include "serve/conversation/tools.h"

namespace refold {

// `format` is the content's; `parts` what the parser will look for. Of tools without `strict` whose schemas
// cannot be enforced, any JSON object is taken as arguments. Throws ApiError (400) for a strict tool whose
// schema cannot, Error(usage) for such a format. The format of the result is empty where every text will do.
AnswerStructure answer_structure(const AnswerParts& parts, const std::vector<Tool>& tools,
                                 const ToolChoice& choice, const OutputFormat& format);

}  // namespace refold
