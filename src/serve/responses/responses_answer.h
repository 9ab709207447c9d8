// Answers of /v1/responses.
#pragma once

#include "serve/answer.h"
#include "serve/responses/responses_request.h"
#include "serve/served_model.h"

namespace refold {

std::unique_ptr<ApiAnswer> make_answer(const ResponsesRequest& request, const ServedModel& model,
                                       const std::function<void()>& check);

}  // namespace refold
