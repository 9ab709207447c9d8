// GGUF models that llama.cpp's gguf-split has written as several files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/gguf.h"

namespace refold {

struct GgufParts {
    std::vector<std::shared_ptr<const GgufFile>> files;  // in order; mostly one
    GgufMetadata metadata;                               // the first part's, without the keys split.*
};

// Opens a GGUF file, or with the first of several parts ("NAME-00001-of-00003.gguf") all of them. Throws as
// GgufFile::open(), Error(usage) for another part than the first, Error(io) for a part that is missing, and
// Error(input) where the parts do not belong together: numbers, counts, or a tensor in two of them.
GgufParts open_gguf_parts(const std::string& path);

// Throws Error(unsupported) naming the number of parts when a file is one of several: for files that are
// never split, such as adapters.
void check_whole(const GgufFile& file, const std::string& path);

// The place of a part in its file name: "b-00002-of-00003.gguf" is part 2 of 3 of "b". 1 of 1 for other
// names.
struct GgufPartName {
    std::string base;
    uint64_t number = 1, count = 1;
};
GgufPartName gguf_part_name(const std::string& path);

}  // namespace refold
