// Fuzzes what the server reads of a connection: neither the head of an HTTP request nor a body in chunks
// depends on how much has arrived. The first byte of an input says which: "h" a head, else a body.
#include <cstdlib>
#include <string>

#include "serve/chunked_body.h"
#include "serve/http_head.h"
#include "target.h"

namespace {

constexpr size_t kMostBody = 1 << 20;

const std::string kHead =
    "hPOST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 12\r\n"
    "Expect: 100-continue\r\n\r\n";

const std::string kChunks = "c5\r\nhello\r\nA;name=value\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";

constexpr std::string_view kWords[] = {"\r\n",
                                       "\r\n\r\n",
                                       " ",
                                       "\n",
                                       "Transfer-Encoding: chunked\r\n",
                                       "Content-Length: 99",
                                       "0\r\n",
                                       "ffffffffffffffff\r\n",
                                       "Expect: 100-continue\r\n"};

bool head_taken(const std::string& text) {
    const auto all = refold::scan_head(text, kMostBody);
    for (size_t size = 0; size <= text.size(); ++size) {
        const auto some = refold::scan_head(std::string_view(text).substr(0, size), kMostBody);
        if (!some) continue;
        if (!all || some->bytes != all->bytes || some->body != all->body || some->status != all->status ||
            some->chunked != all->chunked || some->path != all->path)
            abort();
        if (some->coding_begin > some->coding_end || some->coding_end > some->bytes) abort();
        if (some->bytes > size || (some->status == 0 && some->body > kMostBody)) abort();
    }
    return all && all->status == 0;
}

bool chunks_taken(const std::string& text) {
    using State = refold::ChunkedBody::State;
    std::string whole = text, pieces;
    refold::ChunkedBody at_once, in_pieces;
    const State expected = at_once.decode(whole, 0, kMostBody);
    State state = State::incomplete;
    size_t given = 0;
    for (; given < text.size() && state == State::incomplete; ++given) {
        pieces += text[given];
        state = in_pieces.decode(pieces, 0, kMostBody);
    }
    if (state != expected || in_pieces.size() != at_once.size() || at_once.size() > text.size()) abort();
    if (state == State::complete && pieces + text.substr(given) != whole) abort();
    return state == State::complete;
}

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    constexpr size_t kMost = 512;  // every beginning of a text is read
    if (input.empty()) return false;
    const std::string text(input.substr(1, kMost));
    return input.front() == 'h' ? head_taken(text) : chunks_taken(text);
}

std::vector<std::string> refold::fuzz_seeds() { return {kHead, kChunks}; }
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
