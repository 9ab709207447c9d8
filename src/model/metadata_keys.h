// Keys of refold's own in GGUF metadata that reading and writing have in common: see docs/format.md.
#pragma once

namespace refold {

inline constexpr const char* kTopologyKey = "refold.topology";
inline constexpr const char* kFoldedKey = "refold.folded";
inline constexpr const char* kSizesKey = "refold.sizes";
inline constexpr const char* kProvenanceKey = "refold.provenance";
inline constexpr const char* kVersionKey = "refold.version";

}  // namespace refold
