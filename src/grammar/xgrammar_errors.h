// What XGrammar cannot do, as errors: it only warns of some of it.
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "grammar/format_work.h"

namespace refold {

// What XGrammar warns of on this thread while it lives: it goes on without what it does not know.
struct XGrammarWarnings {
    std::string text;

    XGrammarWarnings();
    ~XGrammarWarnings();
    XGrammarWarnings(const XGrammarWarnings&) = delete;
    XGrammarWarnings& operator=(const XGrammarWarnings&) = delete;
};

// Runs `work` so that what XGrammar cannot do is an Error(usage) of `what`: also what it only warns of.
template <typename Work>
auto enforced(const char* what, Work&& work) {
    const XGrammarWarnings ignored;
    std::optional<std::invoke_result_t<Work>> result;
    try {
        result = work();
    } catch (const Error&) {
        throw;
    } catch (const std::exception& error) {
        if (FormatWork::ended()) throw;
        fail(ErrorCode::usage, what, "{}", error.what());
    }
    if (!ignored.text.empty())
        fail(ErrorCode::usage, what, "not all of it can be enforced: {}", ignored.text);
    return *std::move(result);
}

}  // namespace refold
