#include "core/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "core/error.h"

namespace refold {

Sha256::Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    if (!context_ || EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1) {
        fail(ErrorCode::internal, "sha256", "libcrypto has no SHA-256");
    }
}

Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> data) {
    EVP_DigestUpdate(context_.get(), data.data(), data.size());
}

std::string Sha256::hex() {
    std::array<unsigned char, 32> digest{};
    EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr);
    return fmt::format("{:02x}", fmt::join(digest, ""));
}

std::string sha256_hex(std::span<const std::byte> data) {
    Sha256 hash;
    hash.update(data);
    return hash.hex();
}

}  // namespace refold
