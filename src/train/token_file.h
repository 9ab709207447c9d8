// Tokens of a training text on disk, memory-mapped.
//
// Little-endian: "REFOLDTK", uint32 version, uint32 0, the identity as 64 hexadecimal digits, zeros up to
// byte 128; n int32 tokens; n bytes, 1 where the token is scored; zeros up to a multiple of 8; uint64 n,
// uint64 documents, "REFOLDTE". The counts come last because the text is read once, and a file without them
// is not complete.
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
    // Nothing when there is no such file, or one of another version or identity. Throws Error(io),
    // Error(input) for a file that is none or is damaged.
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

// Writes one, document by document, replacing an old one; it appears complete or not at all.
class TokenFileWriter {
public:
    // `identity`: 64 hexadecimal digits.
    TokenFileWriter(const std::string& path, const std::string& identity);
    // Documents are cut anywhere into as many parts as the caller likes.
    void add(const TrainDocument& part, bool ends = true);
    uint64_t tokens() const { return tokens_; }
    void commit();

private:
    AtomicFile file_;
    uint64_t tokens_ = 0, documents_ = 0;
    std::vector<uint64_t>
        changes_;  // tokens from which on scoring is the other way; it begins with none scored
};

}  // namespace refold
