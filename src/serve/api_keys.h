// API keys, which clients send as "Authorization: Bearer KEY", with the scheme in upper or lower case.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace refold {

class ApiKeys {
public:
    // Without keys, every request is allowed. Throws Error(usage) for a key that no header can hold.
    explicit ApiKeys(const std::vector<std::string>& keys);
    bool required() const { return !digests_.empty(); }
    // Takes a time that does not depend on how much of a key is right.
    bool allows(std::string_view authorization) const;

private:
    std::vector<std::string> digests_;  // SHA-256
};

// Reads one key per line, skipping empty lines and lines that begin with #. Throws Error(input) when the file
// has no key.
std::vector<std::string> read_api_keys(const std::string& path);

}  // namespace refold
