// The torch engine is a separate library that is loaded on first use: starting libtorch takes longer than
// most of what refold does without it.
#pragma once

#include "engine/engine.h"

namespace refold::torch_plugin {

inline constexpr const char* kLibrary = "librefold_torch.so";

// Its symbols; code linked into it adds its own. Both sides must be of the same version, since they exchange
// C++ objects.
inline constexpr const char* kVersionSymbol = "refold_torch_version";
using Version = const char*();
inline constexpr const char* kMakeSymbol = "refold_torch_make_engine";
using Make = Engine*(const Model& model, const EngineOptions& options, const Capabilities& capabilities);

// The address of a function of the library, which is loaded first if necessary. Throws Error(unsupported) if
// this build has no torch engine or the library cannot be loaded.
void* find(const char* symbol);

// Calls a function of the library, void(const Request&, Result&), and returns the result.
template <typename Result, typename Request>
Result ask(const char* symbol, const Request& request) {
    Result result;
    reinterpret_cast<void (*)(const Request&, Result&)>(find(symbol))(request, result);
    return result;
}

}  // namespace refold::torch_plugin
