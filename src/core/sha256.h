#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

struct evp_md_ctx_st;

namespace refold {

// Streaming SHA-256 (FIPS 180-4), computed by libcrypto.
class Sha256 {
public:
    Sha256();
    ~Sha256();
    void update(std::span<const std::byte> data);
    // Lower-case hexadecimal digest. Call it once, last.
    std::string hex();

private:
    std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

std::string sha256_hex(std::span<const std::byte> data);

}  // namespace refold
