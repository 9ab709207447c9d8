// API keys. Clients send one as "Authorization: Bearer KEY", with the scheme in upper or lower case, or as
// "x-api-key: KEY".
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "serve/key_holder.h"

namespace refold {

struct ApiKey {
    std::string key;
    std::string name = {};  // of its holder, for the log and metrics; empty: "key" with the key's number
    KeyLimits limits = {};  // of all keys of that holder together
};

class ApiKeys {
public:
    // Without keys, every request is allowed. Throws Error(usage) for a key that no header can hold, a name
    // that is not made of letters, digits and "._-", at most 64 of them, and keys of one name whose limits
    // differ.
    explicit ApiKeys(const std::vector<ApiKey>& keys) { replace(keys); }
    // Holders that stay keep what they have used. Throws as the constructor does, and then changes nothing.
    // Any thread, as the rest.
    void replace(const std::vector<ApiKey>& keys);
    bool required() const;
    // The holder of a key that one of the headers shows; null when there is none. Takes a time that does not
    // depend on how much of a key is right.
    std::shared_ptr<KeyHolder> find(std::string_view authorization, std::string_view x_api_key) const;
    std::vector<std::shared_ptr<KeyHolder>> holders() const;

private:
    struct Known {
        std::string digest;  // SHA-256
        std::shared_ptr<KeyHolder> holder;
    };
    mutable std::mutex mutex_;
    std::vector<Known> known_;
};

// Reads a file with a line for each key: the key, and then, as far as wanted, "name=NAME", "rpm=N" (requests
// per minute), "tpm=N" (tokens per minute) and "concurrent=N". Empty lines and lines that begin with # are
// skipped. Throws Error(input), naming the line but never the key, for anything else and when the file has no
// key.
std::vector<ApiKey> read_api_keys(const std::string& path);

}  // namespace refold
