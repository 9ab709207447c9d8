#include "fit/budget.h"

#include "fit/plan_file.h"
#include "model/accounting.h"

namespace refold {

bool within(const Spending& spending, const Budget& budget) {
    return (!budget.file_bytes || spending.file_bytes <= *budget.file_bytes) &&
           (!budget.kv_bytes_per_token || spending.kv_bytes_per_token <= *budget.kv_bytes_per_token) &&
           (!budget.token_seconds || spending.token_seconds <= *budget.token_seconds);
}

Spending spending_of(const Model& made, const TypeSpeeds* speeds) {
    return {file_bytes(made), account(made).model.kv_bytes_per_token,
            speeds != nullptr ? token_seconds(made, *speeds) : 0};
}

}  // namespace refold
