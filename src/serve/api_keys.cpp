#include "serve/api_keys.h"

#include <openssl/crypto.h>

#include <algorithm>

#include "core/error.h"
#include "core/json_lines.h"
#include "core/sha256.h"
#include "core/text.h"

namespace refold {

static std::string digest(std::string_view text) { return sha256_hex(std::as_bytes(std::span(text))); }

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
    for (const std::string& key : keys) {
        const bool printable = std::ranges::all_of(key, [](char c) { return c > ' ' && c < 127; });
        if (key.empty() || !printable)
            fail(ErrorCode::usage, "serve", "an API key must be printable ASCII without spaces");
        digests_.push_back(digest(key));
    }
}

bool ApiKeys::allows(std::string_view authorization) const {
    if (!required()) return true;
    constexpr std::string_view kScheme = "bearer ";
    const bool known =
        std::ranges::equal(authorization.substr(0, kScheme.size()), kScheme, [](char given, char wanted) {
            return (given >= 'A' && given <= 'Z' ? given + 32 : given) == wanted;
        });
    if (!known) return false;
    authorization.remove_prefix(kScheme.size());
    const std::string given = digest(authorization);
    bool found = false;
    for (const std::string& key : digests_)
        found = (CRYPTO_memcmp(given.data(), key.data(), key.size()) == 0) || found;
    return found;
}

std::vector<std::string> read_api_keys(const std::string& path) {
    std::vector<std::string> keys;
    for_lines(read_text_file(path), [&](std::string_view line, size_t) {
        while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
        if (!line.empty() && line.front() != '#') keys.emplace_back(line);
    });
    if (keys.empty()) fail(ErrorCode::input, "serve", "'{}' holds no API key - write one per line", path);
    return keys;
}

}  // namespace refold
