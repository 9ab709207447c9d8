// GBNF, the notation of llama.cpp's grammars, as XGrammar reads it.
#pragma once

#include <string>
#include <string_view>

namespace refold {

// A grammar that XGrammar reads as llama.cpp reads `grammar`. XGrammar's notation is nearly the same. It
// lacks "." for any character, empty alternatives, line ends within strings, repetitions of repetitions,
// rules that are defined again, and names that begin with a digit. A text that llama.cpp refuses is returned
// as it is: XGrammar has more ("|" at the beginning of a line), and otherwise says what is wrong. A byte
// order mark is left out. Throws Error(usage) for brackets that are nested too deep, for bytes that are no
// UTF-8, and for tokens
// (<think>), which are not supported.
std::string read_gbnf(std::string_view grammar);

}  // namespace refold
