// Memory-mapped file of the tokens of a training text.
//
// Little-endian: "REFOLDTK", uint32 version, uint32 0, the identity as 64 hexadecimal digits, zeros up to
// byte 128; n int32 tokens; n bytes, 1 where the token is scored; zeros up to a multiple of 8; uint64 n,
// uint64 documents, "REFOLDTE". The counts come last because the text is read only once; a file without them
// is incomplete.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/files.h"
#include "train/records.h"

namespace refold {

class TokenFile {
public:
    // Nothing when the file is missing or has another version or identity. Throws Error(io), Error(input) for
    // a damaged file or one that is not a token file.
    static std::optional<TokenFile> open(const std::string& path, const std::string& identity);

    std::span<const int32_t> tokens() const { return tokens_; }
    std::span<const uint8_t> scored() const { return scored_; }
    uint64_t documents() const { return documents_; }

private:
    std::shared_ptr<const MappedFile> file_;
    std::span<const int32_t> tokens_;
    std::span<const uint8_t> scored_;
    uint64_t documents_ = 0;
};

// Writes a token file document by document, replacing an old one. The file appears complete or not at all.
class TokenFileWriter {
public:
    // `identity`: 64 hexadecimal digits.
    TokenFileWriter(const std::string& path, const std::string& identity);
    // Adds a document, or a part of one; `ends` marks the last part.
    void add(const TrainDocument& part, bool ends = true);
    uint64_t tokens() const { return tokens_; }
    void commit();

private:
    AtomicFile file_;
    uint64_t tokens_ = 0, documents_ = 0;
    std::vector<uint64_t> changes_;  // tokens at which `scored` flips; it begins as not scored
};

}  // namespace refold
