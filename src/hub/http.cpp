#include "hub/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <exception>

#include "core/error.h"
#include "core/interrupt.h"
#include "hub/retry.h"

namespace refold::hub {
namespace {

struct CurlFree {
    void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
    void operator()(curl_slist* list) const { curl_slist_free_all(list); }
    void operator()(CURLU* url) const { curl_url_cleanup(url); }
    void operator()(char* text) const { curl_free(text); }
};

// A separate type from CurlFree, because both of libcurl's handles are void pointers.
struct MultiFree {
    void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
};

// The state that libcurl's callbacks get.
struct Transfer {
    CURL* easy;
    const Sink& sink;
    Response response;
    std::exception_ptr error;
};

std::optional<uint64_t> parse_number(std::string_view text) {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return {};
    return value;
}

std::string_view trimmed(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == text.npos) return {};
    return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

size_t on_header(char* data, size_t, size_t size, void* user) {
    auto& response = static_cast<Transfer*>(user)->response;
    const std::string_view line(data, size);
    if (line.starts_with("HTTP/")) {
        response = {};  // drop the headers of an interim response: 100, or a proxy's
    } else if (const size_t colon = line.find(':'); colon != line.npos && response.headers.size() < 200) {
        std::string name(line.substr(0, colon));
        std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
        response.headers[name] = trimmed(line.substr(colon + 1));
    }
    return size;
}

size_t on_body(char* data, size_t, size_t size, void* user) {
    auto& transfer = *static_cast<Transfer*>(user);
    auto& response = transfer.response;
    curl_easy_getinfo(transfer.easy, CURLINFO_RESPONSE_CODE, &response.status);
    constexpr size_t kText = 4096;
    try {
        if (response.status >= 200 && response.status < 300) {
            if (transfer.sink) transfer.sink(response, std::as_bytes(std::span(data, size)));
        } else if (response.text.size() < kText) {
            response.text.append(data, std::min(size, kText - response.text.size()));
        }
    } catch (...) {
        transfer.error = std::current_exception();
        return CURL_WRITEFUNC_ERROR;
    }
    return size;
}

struct Origin {
    std::string scheme, host, port;
    bool operator==(const Origin&) const = default;
};

Origin origin(const std::string& url) {
    const std::unique_ptr<CURLU, CurlFree> parsed(curl_url());
    const auto part = [&](CURLUPart which) {
        char* text = nullptr;
        if (curl_url_get(parsed.get(), which, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return std::string();
        std::string out = std::unique_ptr<char, CurlFree>(text).get();
        std::ranges::transform(out, out.begin(), [](unsigned char c) { return std::tolower(c); });
        return out;
    };
    if (!parsed || curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return {};
    return {part(CURLUPART_SCHEME), part(CURLUPART_HOST), part(CURLUPART_PORT)};
}

bool is_redirect(long status) { return status >= 301 && status <= 308 && status != 304 && status != 305; }

// Status codes of a server that is busy or broken for a while.
bool is_transient(long status) {
    return status == 408 || status == 429 || (status >= 500 && status != 501 && status != 505);
}

// Failures that a retry would not fix.
bool is_permanent(CURLcode code) {
    constexpr std::array kCodes = {
        CURLE_UNSUPPORTED_PROTOCOL, CURLE_FAILED_INIT,        CURLE_URL_MALFORMAT,
        CURLE_NOT_BUILT_IN,         CURLE_OUT_OF_MEMORY,      CURLE_SSL_CERTPROBLEM,
        CURLE_SSL_CIPHER,           CURLE_SSL_CACERT_BADFILE, CURLE_PEER_FAILED_VERIFICATION};
    return std::ranges::find(kCodes, code) != kCodes.end();
}

}  // namespace

std::string Response::header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
}

std::optional<uint64_t> Response::number(const std::string& name) const { return parse_number(header(name)); }

Response::Range Response::range() const {
    const std::string value = header("content-range");
    const size_t slash = value.find('/');
    if (!value.starts_with("bytes ") || slash == value.npos) return {};
    const std::string_view bytes = std::string_view(value).substr(6, slash - 6);
    return {.begin = parse_number(bytes.substr(0, bytes.find('-'))),
            .total = parse_number(value.substr(slash + 1))};
}

struct HttpClient::Curl {
    std::unique_ptr<CURL, CurlFree> easy;
    std::unique_ptr<CURLM, MultiFree> multi;
    std::array<char, CURL_ERROR_SIZE> error{};

    Curl() {
        static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
        easy.reset(curl_easy_init());
        multi.reset(curl_multi_init());
        if (initialized != CURLE_OK || !easy || !multi)
            fail(ErrorCode::internal, "hub", "libcurl does not start");
    }

    template <typename Value>
    void set(CURLoption option, Value value) {
        if (const CURLcode code = curl_easy_setopt(easy.get(), option, value); code != CURLE_OK) {
            fail(ErrorCode::internal, "hub", "libcurl option {}: {}", static_cast<int>(option),
                 curl_easy_strerror(code));
        }
    }

    void prepare(const Request& request, Transfer& transfer, const curl_slist* headers, int stall_seconds) {
        curl_easy_reset(easy.get());
        error[0] = '\0';
        set(CURLOPT_ERRORBUFFER, error.data());
        set(CURLOPT_URL, request.url.c_str());
        set(CURLOPT_PROTOCOLS_STR, "http,https");
        set(CURLOPT_NOBODY, request.head ? 1L : 0L);
        set(CURLOPT_HTTPHEADER, headers);
        set(CURLOPT_USERAGENT, "refold");
        // libcurl's own resumption would fail when the server sends the whole file.
        if (request.offset > 0) set(CURLOPT_RANGE, fmt::format("{}-", request.offset).c_str());
        set(CURLOPT_NOSIGNAL, 1L);
        set(CURLOPT_QUICK_EXIT, 1L);  // an interrupt need not wait for DNS
        set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
        set(CURLOPT_CONNECTTIMEOUT, static_cast<long>(stall_seconds));
        set(CURLOPT_LOW_SPEED_LIMIT, 1L);
        set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(stall_seconds));
        set(CURLOPT_HEADERFUNCTION, on_header);
        set(CURLOPT_HEADERDATA, &transfer);
        set(CURLOPT_WRITEFUNCTION, on_body);
        set(CURLOPT_WRITEDATA, &transfer);
    }

    // Uses the multi interface, so that it can check for interrupts ten times a second.
    CURLcode perform() {
        struct Attachment {
            CURLM* multi;
            CURL* easy;
            ~Attachment() { curl_multi_remove_handle(multi, easy); }
        };
        if (curl_multi_add_handle(multi.get(), easy.get()) != CURLM_OK) return CURLE_FAILED_INIT;
        const Attachment attachment{multi.get(), easy.get()};
        for (int running = 1;;) {
            if (curl_multi_perform(multi.get(), &running) != CURLM_OK) return CURLE_FAILED_INIT;
            if (running == 0) break;
            curl_multi_poll(multi.get(), nullptr, 0, 100, nullptr);
            check_interrupt();
        }
        int left = 0;
        const CURLMsg* const message = curl_multi_info_read(multi.get(), &left);
        return message == nullptr ? CURLE_FAILED_INIT : message->data.result;
    }
};

HttpClient::HttpClient(std::string endpoint, std::string token, int stall_seconds)
    : endpoint_(std::move(endpoint)),
      token_(std::move(token)),
      stall_seconds_(stall_seconds),
      curl_(std::make_unique<Curl>()) {}

HttpClient::~HttpClient() = default;

Response HttpClient::one_exchange(const Request& request, const Sink& sink) {
    std::unique_ptr<curl_slist, CurlFree> headers;
    if (has_token() && origin(request.url) == origin(endpoint_)) {
        headers.reset(curl_slist_append(nullptr, ("Authorization: Bearer " + token_).c_str()));
    }
    Transfer transfer{.easy = curl_->easy.get(), .sink = sink, .response = {}, .error = {}};
    curl_->prepare(request, transfer, headers.get(), stall_seconds_);
    const CURLcode code = curl_->perform();
    if (transfer.error) std::rethrow_exception(transfer.error);
    curl_easy_getinfo(curl_->easy.get(), CURLINFO_RESPONSE_CODE, &transfer.response.status);

    const std::string host = origin(request.url).host;
    if (code != CURLE_OK) {
        const std::string said = curl_->error[0] != '\0' ? curl_->error.data() : curl_easy_strerror(code);
        if (!is_permanent(code)) throw Transient(fmt::format("{} ({})", said, host));
        fail(ErrorCode::io, "hub", "{} ({}) - check HF_ENDPOINT and the proxy settings", said, host);
    }
    if (is_transient(transfer.response.status)) {
        curl_off_t wait = 0;
        curl_easy_getinfo(curl_->easy.get(), CURLINFO_RETRY_AFTER, &wait);
        throw Transient(fmt::format("{} answers HTTP {}", host, transfer.response.status),
                        static_cast<double>(wait));
    }
    return std::move(transfer.response);
}

Response HttpClient::exchange(Request request, const Sink& sink) {
    const Origin first = origin(request.url);
    constexpr int kMostRedirects = 10;
    for (int i = 0; i < kMostRedirects; ++i) {
        Response response = one_exchange(request, sink);
        if (!is_redirect(response.status)) return response;
        const char* to = nullptr;
        curl_easy_getinfo(curl_->easy.get(), CURLINFO_REDIRECT_URL, &to);
        if (to == nullptr) fail(ErrorCode::input, "hub", "{} redirects to nowhere", origin(request.url).host);
        const Origin next = origin(to);
        if (request.head && next != first) return response;
        if (next.scheme != "https" && next.scheme != first.scheme) {
            fail(ErrorCode::input, "hub", "{} redirects to '{}:', which is not safe",
                 origin(request.url).host, next.scheme);
        }
        request.url = to;
    }
    fail(ErrorCode::input, "hub", "{} redirects more than {} times", first.host, kMostRedirects);
}

}  // namespace refold::hub
