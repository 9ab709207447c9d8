// Answers of /v1/messages.
#pragma once

#include "serve/answer.h"
#include "serve/conversation/turn.h"
#include "serve/messages/messages_request.h"

namespace refold {

// The model's turn. Throws as make_turn() does, and ApiError (400) where thinking is asked of a model that
// does not write any.
Turn messages_turn(const MessagesRequest& request, const ServedModel& model,
                   const std::function<void()>& check);

std::unique_ptr<ApiAnswer> make_answer(const MessagesRequest& request, const ServedModel& model,
                                       const std::function<void()>& check);

}  // namespace refold
