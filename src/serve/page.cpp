#include "serve/page.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

namespace refold {

// The policy's hash of the text between <tag> and </tag>.
static std::string hash_of(const char* tag) {
    const std::string open = fmt::format("<{}>", tag), close = fmt::format("</{}>", tag);
    const size_t begin = kPage.find(open) + open.size();
    const std::string_view text = kPage.substr(begin, kPage.find(close, begin) - begin);
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
    unsigned char base64[4 * ((SHA256_DIGEST_LENGTH + 2) / 3) + 1];
    const int size = EVP_EncodeBlock(base64, digest, SHA256_DIGEST_LENGTH);
    return fmt::format("'sha256-{}'",
                       std::string_view(reinterpret_cast<const char*>(base64), static_cast<size_t>(size)));
}

std::string page_security_policy() {
    return fmt::format(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash_of("script"), hash_of("style"));
}

}  // namespace refold
