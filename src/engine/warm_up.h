// The first step of an engine, before somebody waits for it.
#pragma once

#include "engine/engine.h"

namespace refold {

// Runs one token and forgets it. Systems give memory when it is touched first, in large pieces: the first
// step gets most of a KV cache, which can take longer than a prompt. With `adapters` another one has the
// first of them: a device gets all of an engine's adapters with it. Throws as Engine::step() does.
void warm_up(Engine& engine, std::span<const int32_t> adapters = {});

}  // namespace refold
