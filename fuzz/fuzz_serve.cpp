// Fuzzes the server's input: for any bytes, a request is accepted or refused with an ApiError of status 400
// that is JSON itself, and neither the head of an HTTP request nor a body in chunks depends on how much has
// arrived.
//     refold_fuzz_serve [--iterations N] [--seed N]
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "fuzzing.h"
#include "serve/api_error.h"
#include "serve/api_request.h"
#include "serve/chunked_body.h"
#include "serve/http_head.h"

namespace {

constexpr size_t kMostBody = 1 << 20;

const std::string kBodies[] = {
    R"({"model": "m", "prompt": ["caf\u00e9", [1, 2, 3]], "max_tokens": 16, "temperature": 0.7, "top_p": 0.9, "n": 2,
        "best_of": 2, "stream": true, "stream_options": {"include_usage": true}, "logprobs": 5, "echo": true,
        "stop": ["a", "b"], "seed": 7, "top_k": 40, "ignore_eos": false, "suffix": null, "logit_bias": {}})",
    R"({"model": "m", "messages": [{"role": "system", "content": "S"}, {"role": "user", "content":
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"role": "assistant", "content": null,
        "tool_calls": []}, {"role": "user", "content": "c", "name": "n"}], "max_completion_tokens": 5,
        "logprobs": true, "top_logprobs": 3, "tools": [], "response_format": {"type": "text"}})",
    R"({"prompt": "a", "add_special_tokens": false})", R"({"tokens": [1, 2, 3]})"};

const std::string kHead =
    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 12\r\n"
    "Expect: 100-continue\r\n\r\n";

const std::string kChunks = "5\r\nhello\r\nA;name=value\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";

constexpr const char* kPieces[] = {"{",
                                   "}",
                                   "[",
                                   "]",
                                   "\"",
                                   ",",
                                   ":",
                                   "null",
                                   "1e400",
                                   "-1",
                                   "\\ud800",
                                   "\xE2",
                                   "true",
                                   "messages",
                                   "prompt",
                                   "content",
                                   "\"role\"",
                                   "0.5",
                                   "[[[[[[[[",
                                   "\r\n",
                                   "\r\n\r\n",
                                   " ",
                                   "\n",
                                   "Transfer-Encoding: chunked\r\n",
                                   "Content-Length: 99"};

bool taken(size_t kind, const std::string& body) {
    try {
        switch (kind) {
            case 0:
                if (refold::parse_completion_request(body).prompts.empty()) abort();
                break;
            case 1:
                if (refold::parse_chat_request(body).messages.empty()) abort();
                break;
            case 2: refold::parse_tokenize_request(body); break;
            default: refold::parse_detokenize_request(body);
        }
        return true;
    } catch (const refold::ApiError& error) {
        const auto said = nlohmann::json::parse(refold::error_body(error), nullptr, false);
        if (error.status != 400 || error.message.empty() || !said.contains("error")) abort();
        return false;
    }
}

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

int main(int argc, char** argv) {
    const refold::FuzzArguments arguments(argc, argv, 20000);
    std::mt19937_64 random(arguments.seed);
    constexpr size_t kHeads = std::size(kBodies), kKinds = kHeads + 2;
    const auto run = [](size_t kind, const std::string& text) {
        return kind < kHeads ? taken(kind, text) : kind == kHeads ? head_taken(text) : chunks_taken(text);
    };
    const auto seed = [](size_t kind) -> const std::string& {
        return kind < kHeads ? kBodies[kind] : kind == kHeads ? kHead : kChunks;
    };
    for (size_t kind = 0; kind < kKinds; ++kind) {
        if (run(kind, seed(kind))) continue;
        fprintf(stderr, "refold_fuzz_serve: seed %d is refused\n", static_cast<int>(kind));
        return 1;
    }
    uint64_t count = 0;
    for (uint64_t i = 0; i < arguments.iterations; ++i) {
        const size_t kind = random() % kKinds;
        count += run(kind, refold::mutated(seed(kind), kPieces, random)) ? 1 : 0;
    }
    printf("%llu inputs, %llu taken\n", static_cast<unsigned long long>(arguments.iterations),
           static_cast<unsigned long long>(count));
    return count > 0 && count < arguments.iterations ? 0 : 1;
}
