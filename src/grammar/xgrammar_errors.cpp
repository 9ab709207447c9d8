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

// XGrammar's messages come here (XGRAMMAR_LOG_CUSTOMIZE), and what it does (cmake/xgrammar/work.patch).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message);
void LogMessageImpl(const std::string&, int, int level, const std::string& message);
void CountWork(size_t steps);

void LogFatalImpl(const std::string&, int, const std::string& message) { throw std::runtime_error(message); }

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
    if (level < refold::kWarning || refold::warnings == nullptr) return;
    *refold::warnings += (refold::warnings->empty() ? "" : "; ") + message;
}

void CountWork(size_t steps) { refold::FormatWork::count(steps); }

}  // namespace xgrammar
