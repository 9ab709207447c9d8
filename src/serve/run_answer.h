// Runs the choices of a request through its model's scheduler and sends the answer, at once or as a stream.
#pragma once

#include <httplib.h>

#include <memory>

#include "serve/answer.h"
#include "serve/service.h"

namespace refold {

// Throws ApiError as Choices do, and for choices that could not be finished; in a stream that has begun, the
// error is its last event.
void run_answer(Service& service, const std::shared_ptr<ServedModel>& model,
                std::unique_ptr<ApiAnswer> answer, const httplib::Request& request,
                httplib::Response& response);

}  // namespace refold
