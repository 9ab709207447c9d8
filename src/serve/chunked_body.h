// Decodes a request's body that comes in chunks (RFC 9112, section 7.1) in place, as it arrives.
#pragma once

#include <cstddef>
#include <string>

namespace refold {

class ChunkedBody {
public:
    enum class State { incomplete, complete, malformed, too_large };

    // `text` from `begin` on: what the calls before left of the body, size() bytes, then what has arrived
    // since. Removes the framing of chunks; extensions of chunks and trailers are dropped. After `complete`
    // the rest of `text` belongs to the next request. Bodies above `most` bytes are too large, and those
    // whose framing has more than 64 KiB and twice the bytes of the body are malformed: chunks of a byte cost
    // far more time than their bytes.
    State decode(std::string& text, size_t begin, size_t most);
    size_t size() const { return size_; }

private:
    enum class Part { size, data, data_end, trailers };
    State advance(const std::string& text, size_t& from, size_t most);

    Part part_ = Part::size;
    size_t size_ = 0;                    // decoded
    size_t left_ = 0;                    // of the chunk
    size_t framing_ = 0, trailers_ = 0;  // bytes
};

}  // namespace refold
