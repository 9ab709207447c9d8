#include "train/token_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "core/error.h"

namespace refold {
namespace {

constexpr const char* kTokenFile = "training data";
constexpr uint32_t kVersion = 1;
constexpr std::array<char, 8> kMagic = {'R', 'E', 'F', 'O', 'L', 'D', 'T', 'K'},
                              kEndMagic = {'R', 'E', 'F', 'O', 'L', 'D', 'T', 'E'};

struct Header {
    std::array<char, 8> magic = kMagic;
    uint32_t version = kVersion, zero = 0;
    std::array<char, 64> identity{};
    std::array<char, 48> reserved{};
};
static_assert(sizeof(Header) == 128);

struct Trailer {
    uint64_t tokens = 0, documents = 0;
    std::array<char, 8> magic = kEndMagic;
};
static_assert(sizeof(Trailer) == 24);

template <typename T>
T read(std::span<const std::byte> bytes) {
    T out;
    std::memcpy(&out, bytes.data(), sizeof out);
    return out;
}

[[noreturn]] void damaged(const std::string& path, const std::string& what) {
    fail(ErrorCode::input, kTokenFile, "'{}' is no complete file of tokens: {} - remove it, it is made again",
         path, what);
}

}  // namespace

std::optional<TokenFile> TokenFile::open(const std::string& path, const std::string& identity) {
    if (!std::filesystem::exists(path)) return std::nullopt;
    TokenFile out;
    out.file_ = std::make_shared<const MappedFile>(path);
    const auto bytes = out.file_->bytes();
    if (bytes.size() < sizeof(Header) + sizeof(Trailer)) damaged(path, fmt::format("{} bytes", bytes.size()));
    const auto header = read<Header>(bytes);
    if (header.magic != kMagic) damaged(path, "it begins in another way");
    if (header.version != kVersion ||
        std::string_view(header.identity.data(), header.identity.size()) != identity)
        return std::nullopt;
    const auto trailer = read<Trailer>(bytes.last(sizeof(Trailer)));
    const uint64_t room = bytes.size() - sizeof(Header) - sizeof(Trailer), count = trailer.tokens;
    if (trailer.magic != kEndMagic) damaged(path, "its end is missing");
    if (count > room / 5 || (count * 5 + 7) / 8 * 8 != room)
        damaged(path, fmt::format("got {} bytes for {} tokens", room, count));
    const auto at = bytes.subspan(sizeof(Header));
    out.tokens_ = {reinterpret_cast<const int32_t*>(at.data()), static_cast<size_t>(count)};
    out.scored_ = {reinterpret_cast<const uint8_t*>(at.data()) + 4 * count, static_cast<size_t>(count)};
    out.documents_ = trailer.documents;
    return out;
}

TokenFileWriter::TokenFileWriter(const std::string& path, const std::string& identity) : file_(path, true) {
    Header header;
    if (identity.size() != header.identity.size())
        fail(ErrorCode::internal, kTokenFile, "an identity of {} digits, expected {}", identity.size(),
             header.identity.size());
    std::copy(identity.begin(), identity.end(), header.identity.begin());
    file_.write(std::as_bytes(std::span(&header, 1)));
}

void TokenFileWriter::add(const TrainDocument& part, bool ends) {
    file_.write(std::as_bytes(std::span(part.tokens)));
    for (size_t i = 0; i < part.tokens.size(); ++i) {
        const bool scored = part.scored.empty() || part.scored[i] != 0, before = changes_.size() % 2 != 0;
        if (scored != before) changes_.push_back(tokens_ + i);
    }
    tokens_ += part.tokens.size();
    documents_ += ends ? 1 : 0;
}

void TokenFileWriter::commit() {
    changes_.push_back(tokens_);
    uint64_t at = 0;
    for (size_t i = 0; i < changes_.size(); ++i) {
        for (constexpr uint64_t kMost = 1 << 20; at < changes_[i];) {
            const uint64_t count = std::min(kMost, changes_[i] - at);
            file_.write(std::string(count, i % 2 != 0 ? '\1' : '\0'));
            at += count;
        }
    }
    file_.align(8);
    const Trailer trailer{.tokens = tokens_, .documents = documents_};
    file_.write(std::as_bytes(std::span(&trailer, 1)));
    file_.commit();
}

}  // namespace refold
