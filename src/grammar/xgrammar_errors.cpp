#include "grammar/xgrammar_errors.h"

#include <stdexcept>

namespace refold {
namespace {

// Where this thread's warnings go; null: nowhere.
thread_local std::string* warnings = nullptr;

constexpr int kWarning = 2;

}  // namespace

XGrammarWarnings::XGrammarWarnings() { warnings = &text; }
XGrammarWarnings::~XGrammarWarnings() { warnings = nullptr; }

}  // namespace refold

// XGrammar's messages come here (XGRAMMAR_LOG_CUSTOMIZE).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message);
void LogMessageImpl(const std::string&, int, int level, const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) { throw std::runtime_error(message); }

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
    if (level < refold::kWarning || refold::warnings == nullptr) return;
    *refold::warnings += (refold::warnings->empty() ? "" : "; ") + message;
}

}  // namespace xgrammar
