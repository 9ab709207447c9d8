#include "hub/settings.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "core/error.h"
#include "hub/hub.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

// An empty variable counts as unset.
std::string variable(const char* name) {
    const char* const value = getenv(name);
    return value == nullptr ? "" : value;
}

fs::path home() {
    if (const std::string home = variable("HOME"); !home.empty()) return home;
    fail(ErrorCode::io, "hub", "HOME is not set - set HF_HOME to the folder for downloads");
}

// Expands "~" as Python does.
fs::path expanded(const std::string& path) {
    if (path == "~") return home();
    return path.starts_with("~/") ? home() / path.substr(2) : fs::path(path);
}

fs::path hf_home() {
    if (const std::string path = variable("HF_HOME"); !path.empty()) return expanded(path);
    if (const std::string path = variable("XDG_CACHE_HOME"); !path.empty()) {
        return expanded(path) / "huggingface";
    }
    return home() / ".cache/huggingface";
}

std::string token_of_file() {
    const std::string path = variable("HF_TOKEN_PATH");
    // Without a home folder there is no token, which is not an error.
    if (path.empty() && variable("HF_HOME").empty() && variable("XDG_CACHE_HOME").empty() &&
        variable("HOME").empty()) {
        return "";
    }
    std::ifstream file(path.empty() ? hf_home() / "token" : expanded(path));
    return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::filesystem::path hub_cache() {
    for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
        if (const std::string path = variable(name); !path.empty()) return expanded(path);
    }
    return hf_home() / "hub";
}

namespace hub {

std::string endpoint() {
    std::string url = variable("HF_ENDPOINT");
    if (url.empty()) return "https://huggingface.co";
    while (url.ends_with('/')) url.pop_back();
    if (!url.starts_with("https://") && !url.starts_with("http://")) {
        fail(ErrorCode::usage, "hub", "HF_ENDPOINT: got '{}', expected a URL as in https://hub.example.org",
             url);
    }
    return url;
}

std::string token() {
    std::string text = variable("HF_TOKEN");
    if (text.empty()) text = token_of_file();
    const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
    text.erase(std::find_if_not(text.rbegin(), text.rend(), is_space).base(), text.end());
    text.erase(text.begin(), std::ranges::find_if_not(text, is_space));
    // Other characters could inject lines into the request.
    if (!std::ranges::all_of(text, [](unsigned char c) { return c > 0x20 && c < 0x7f; })) {
        fail(ErrorCode::usage, "hub",
             "the access token holds a character that no token has - check HF_TOKEN and the token file");
    }
    return text;
}

bool is_offline() {
    std::string value = variable("HF_HUB_OFFLINE");
    std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::toupper(c); });
    return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

}  // namespace hub
}  // namespace refold
