// The torch engine is a library of its own, which the rest of refold loads when it is first asked for:
// starting libtorch takes longer than most of what refold does without it.
#pragma once

#include "engine/backend.h"

namespace refold::torch_plugin {

inline constexpr const char* kLibrary = "librefold_torch.so";

// Its symbols; further ones belong to what is linked into it. Both sides are of one version, so they exchange
// C++ objects.
inline constexpr const char* kVersionSymbol = "refold_torch_version";
using Version = const char*();
inline constexpr const char* kMakeSymbol = "refold_torch_make_backend";
using Make = Backend*(const Model& model, const EngineOptions& options);

// A function of the library, which is loaded first. Throws Error(unsupported) when this build has none, or it
// cannot be loaded.
void* find(const char* symbol);

// What a function of the library, void(const Request&, Result&), gives for a request.
template <typename Result, typename Request>
Result ask(const char* symbol, const Request& request) {
    Result result;
    reinterpret_cast<void (*)(const Request&, Result&)>(find(symbol))(request, result);
    return result;
}

}  // namespace refold::torch_plugin
