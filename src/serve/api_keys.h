// Keys that clients show as "Authorization: Bearer KEY".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace refold {

class ApiKeys {
public:
    // Without keys everybody is let in. Throws Error(usage) for one that no header can hold.
    explicit ApiKeys(const std::vector<std::string>& keys);
    bool required() const { return !digests_.empty(); }
    // In a time that does not depend on how much of a key is right.
    bool allows(std::string_view authorization) const;

private:
    std::vector<std::string> digests_;  // SHA-256
};

// One key per line; empty lines and those that begin with # are none. Throws Error(input) without any.
std::vector<std::string> read_api_keys(const std::string& path);

}  // namespace refold
