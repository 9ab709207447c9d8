// The first step of an engine, before somebody waits for it.
#pragma once

#include "engine/engine.h"

namespace refold {

// Runs one token and forgets it. Systems give memory when it is touched first, in large pieces: the first
// step gets most of a KV cache, which can take longer than a prompt. Throws as Engine::step() does.
void warm_up(Engine& engine);

}  // namespace refold
