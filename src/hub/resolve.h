// MODEL arguments.
#pragma once

#include <string>

namespace refold {

// A MODEL argument as a path: an existing path as it is, else a catalogue name or a model of the hub
// (org/name[@revision][:QUANT]) that has been pulled.
// Throws Error(usage) that says how to get it when it is not there yet, or what is known; Error(io) for a
// path (by its look) to nothing.
std::string resolve_model(const std::string& argument);

}  // namespace refold
