#include "serve/api_keys.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "core/error.h"
#include "core/json_lines.h"
#include "core/sha256.h"
#include "core/text.h"

namespace refold {
namespace {

std::string digest(std::string_view text) { return sha256_hex(std::as_bytes(std::span(text))); }

bool is_name(std::string_view name) {
    constexpr size_t kLongest = 64;
    constexpr std::string_view kOther = "._-";
    return name.size() <= kLongest && std::ranges::all_of(name, [&](char c) {
               return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      kOther.find(c) != kOther.npos;
           });
}

// What follows the scheme; empty for another scheme.
std::string_view bearer(std::string_view authorization) {
    constexpr std::string_view kScheme = "bearer ";
    const bool known =
        std::ranges::equal(authorization.substr(0, kScheme.size()), kScheme, [](char given, char wanted) {
            return (given >= 'A' && given <= 'Z' ? given + 32 : given) == wanted;
        });
    return known ? authorization.substr(kScheme.size()) : "";
}

// The next word of `line`, which loses it; empty at the end.
std::string_view next_word(std::string_view& line) {
    constexpr std::string_view kSpace = " \t\r";
    line.remove_prefix(std::min(line.find_first_not_of(kSpace), line.size()));
    const std::string_view word = line.substr(0, line.find_first_of(kSpace));
    line.remove_prefix(word.size());
    return word;
}

// Returns false when `word` is no setting.
bool set(ApiKey& key, std::string_view word) {
    const size_t equals = word.find('=');
    if (equals == word.npos) return false;
    const std::string_view what = word.substr(0, equals), value = word.substr(equals + 1);
    if (what == "name") {
        key.name = value;
        return !value.empty() && is_name(value);
    }
    int64_t* const limit = what == "rpm"          ? &key.limits.requests_per_minute
                           : what == "tpm"        ? &key.limits.tokens_per_minute
                           : what == "concurrent" ? &key.limits.concurrent
                                                  : nullptr;
    if (limit == nullptr) return false;
    constexpr int64_t kMost = 1'000'000'000;
    const auto [last, error] = std::from_chars(value.data(), value.data() + value.size(), *limit);
    return error == std::errc() && last == value.data() + value.size() && *limit > 0 && *limit <= kMost;
}

}  // namespace

void ApiKeys::replace(const std::vector<ApiKey>& keys) {
    std::map<std::string, std::shared_ptr<KeyHolder>> before;
    for (const auto& holder : holders()) before[holder->name()] = holder;
    std::map<std::string, KeyLimits> limits;
    std::vector<std::string> names;
    for (const ApiKey& key : keys) {
        const bool printable = std::ranges::all_of(key.key, [](char c) { return c > ' ' && c < 127; });
        if (key.key.empty() || !printable)
            fail(ErrorCode::usage, "serve", "an API key must be printable ASCII without spaces");
        if (!is_name(key.name))
            fail(ErrorCode::usage, "serve",
                 "the name of an API key must have at most 64 letters, digits and '._-'");
        names.push_back(key.name.empty() ? fmt::format("key{}", names.size() + 1) : key.name);
        const auto [place, added] = limits.emplace(names.back(), key.limits);
        if (!added && place->second != key.limits)
            fail(ErrorCode::usage, "serve", "the keys of '{}' must have the same limits", names.back());
    }
    std::map<std::string, std::shared_ptr<KeyHolder>> after;
    for (const auto& [name, limit] : limits) {
        const auto known = before.find(name);
        after[name] = known == before.end() ? std::make_shared<KeyHolder>(name, limit) : known->second;
        if (known != before.end()) known->second->set_limits(limit);
    }
    std::vector<Known> all;
    for (size_t i = 0; i < keys.size(); ++i) all.push_back({digest(keys[i].key), after.at(names[i])});
    const std::lock_guard lock(mutex_);
    known_ = std::move(all);
}

bool ApiKeys::required() const {
    const std::lock_guard lock(mutex_);
    return !known_.empty();
}

std::shared_ptr<KeyHolder> ApiKeys::find(std::string_view authorization, std::string_view x_api_key) const {
    const std::string given[] = {digest(bearer(authorization)), digest(x_api_key)};
    const std::lock_guard lock(mutex_);
    std::shared_ptr<KeyHolder> found;
    for (const Known& known : known_)
        for (const std::string& one : given)
            if (CRYPTO_memcmp(one.data(), known.digest.data(), one.size()) == 0) found = known.holder;
    return found;
}

std::vector<std::shared_ptr<KeyHolder>> ApiKeys::holders() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<KeyHolder>> out;
    for (const Known& known : known_)
        if (std::ranges::find(out, known.holder) == out.end()) out.push_back(known.holder);
    return out;
}

std::vector<ApiKey> read_api_keys(const std::string& path) {
    std::vector<ApiKey> keys;
    for_lines(read_text_file(path), [&](std::string_view line, size_t number) {
        ApiKey key;
        key.key = next_word(line);
        if (key.key.empty() || key.key.front() == '#') return;
        for (std::string_view word = next_word(line); !word.empty(); word = next_word(line))
            if (!set(key, word))
                fail(ErrorCode::input, "serve",
                     "'{}', line {}: expected a key, and after it only name=NAME, rpm=N, tpm=N and "
                     "concurrent=N",
                     path, number);
        keys.push_back(std::move(key));
    });
    if (keys.empty()) fail(ErrorCode::input, "serve", "'{}' holds no API key - write one per line", path);
    return keys;
}

}  // namespace refold
