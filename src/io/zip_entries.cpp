#include "io/zip_entries.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "core/error.h"

namespace refold {
namespace {

// Sizes and signatures of APPNOTE.TXT, sections 4.3.7, 4.3.12, 4.3.14 to 4.3.16.
constexpr size_t kLocalHeader = 30, kEntry = 46, kEnd = 22, kLocator = 20, kEnd64 = 56;
constexpr uint32_t kLocalSign = 0x04034b50, kEntrySign = 0x02014b50, kEndSign = 0x06054b50,
                   kLocatorSign = 0x07064b50, kEnd64Sign = 0x06064b50;
constexpr uint16_t kExtra64 = 1;

class Archive {
public:
    Archive(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

    std::map<std::string, std::span<const std::byte>> entries() const {
        const Directory directory = find_directory();
        std::map<std::string, std::span<const std::byte>> out;
        uint64_t at = directory.offset;
        for (uint64_t i = 0; i < directory.count; ++i) {
            const auto [name, data, size] = entry(at);
            if (!out.emplace(name, data).second) reject(fmt::format("two entries '{}'", name));
            at += size;
        }
        return out;
    }

private:
    struct Directory {
        uint64_t offset = 0, count = 0;
    };
    struct Entry {
        std::string name;
        std::span<const std::byte> data;
        uint64_t directory_bytes = 0;
    };

    [[noreturn]] void reject(const std::string& what) const {
        fail(ErrorCode::input, "zip", "{} in '{}' - the file is damaged or incomplete", what, path_);
    }

    std::span<const std::byte> part(uint64_t offset, uint64_t size) const {
        if (offset > bytes_.size() || size > bytes_.size() - offset)
            reject(fmt::format("bytes {} to {}, which are not", offset, offset + size));
        return bytes_.subspan(offset, size);
    }
    template <class Number>
    Number number(uint64_t offset) const {
        Number value;
        memcpy(&value, part(offset, sizeof(value)).data(), sizeof(value));
        return value;
    }
    void expect(uint64_t offset, uint32_t sign, const char* what) const {
        if (number<uint32_t>(offset) != sign) reject(fmt::format("no {} at byte {}", what, offset));
    }

    Directory find_directory() const {
        const uint64_t end = find_end();
        if (number<uint16_t>(end + 4) != number<uint16_t>(end + 6)) several_parts();
        Directory out{number<uint32_t>(end + 16), number<uint16_t>(end + 10)};
        if (end >= kLocator && number<uint32_t>(end - kLocator) == kLocatorSign) {
            const auto end64 = number<uint64_t>(end - kLocator + 8);
            expect(end64, kEnd64Sign, "end of the directory");
            part(end64, kEnd64);
            out = {number<uint64_t>(end64 + 48), number<uint64_t>(end64 + 32)};
        }
        if (out.count > bytes_.size() / kEntry) reject(fmt::format("a directory of {} entries", out.count));
        return out;
    }

    // The end record is last, followed by a comment of up to 64 KiB.
    uint64_t find_end() const {
        if (bytes_.size() < kEnd) reject("no zip archive");
        const uint64_t last = bytes_.size() - kEnd;
        const uint64_t first = last - std::min<uint64_t>(last, UINT16_MAX);
        for (uint64_t at = last + 1; at-- > first;)
            if (number<uint32_t>(at) == kEndSign && number<uint16_t>(at + 20) == last - at) return at;
        reject("no end of a zip archive");
    }

    [[noreturn]] void several_parts() const {
        fail(ErrorCode::unsupported, "zip", "'{}' is one part of an archive of several", path_);
    }

    Entry entry(uint64_t at) const {
        expect(at, kEntrySign, "directory entry");
        const auto flags = number<uint16_t>(at + 8), method = number<uint16_t>(at + 10);
        const auto name_size = number<uint16_t>(at + 28), extra_size = number<uint16_t>(at + 30);
        const uint64_t directory_bytes = kEntry + name_size + extra_size + number<uint16_t>(at + 32);
        const auto name_bytes = part(at + kEntry, name_size);
        const std::string name(reinterpret_cast<const char*>(name_bytes.data()), name_size);
        uint64_t packed = number<uint32_t>(at + 20), size = number<uint32_t>(at + 24),
                 offset = number<uint32_t>(at + 42);
        read_large(part(at + kEntry + name_size, extra_size), {&size, &packed, &offset});
        if (method != 0 || (flags & 1) != 0 || packed != size)
            fail(ErrorCode::unsupported, "zip", "'{}' in '{}' is compressed or encrypted", name, path_);
        expect(offset, kLocalSign, "entry");
        const uint64_t data =
            offset + kLocalHeader + number<uint16_t>(offset + 26) + number<uint16_t>(offset + 28);
        return {name, part(data, size), directory_bytes};
    }

    // Replaces numbers that say 2^32 - 1 by those of the entry's zip64 field, which has just these.
    void read_large(std::span<const std::byte> extra, std::initializer_list<uint64_t*> numbers) const {
        const auto read = [&]<class Number>(size_t offset, Number value) {
            memcpy(&value, extra.data() + offset, sizeof(value));
            return value;
        };
        for (size_t at = 0; at + 4 <= extra.size();) {
            const auto id = read(at, uint16_t{}), size = read(at + 2, uint16_t{});
            at += 4;
            if (size > extra.size() - at) reject("an extra field beyond its entry");
            if (id == kExtra64) {
                size_t inside = at;
                for (uint64_t* value : numbers) {
                    if (*value != UINT32_MAX) continue;
                    if (inside + 8 > at + size) reject("a short zip64 field");
                    *value = read(inside, uint64_t{});
                    inside += 8;
                }
                return;
            }
            at += size;
        }
    }

    std::span<const std::byte> bytes_;
    const std::string& path_;
};

}  // namespace

std::map<std::string, std::span<const std::byte>> stored_zip_entries(std::span<const std::byte> archive,
                                                                     const std::string& path) {
    return Archive(archive, path).entries();
}

}  // namespace refold
