#include "train/event_file.h"

#include <array>
#include <bit>
#include <cstring>

namespace refold {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<uint32_t, 256> crc_table() {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < table.size(); ++i) {
        uint32_t rest = i;
        for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? 0x82f63b78u : 0);
        table[i] = rest;
    }
    return table;
}

// TFRecord stores checksums masked (rotated, plus a constant), because a CRC of data that contains CRCs is
// weak.
uint32_t masked(uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8u; }

template <typename T>
std::string little_endian(T value) {
    std::string out(sizeof value, '\0');
    std::memcpy(out.data(), &value, sizeof value);
    return out;
}

std::string varint(uint64_t value) {
    std::string out;
    for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
    return out + static_cast<char>(value);
}

// Protocol buffer fields: number and wire type, then the value.
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string key(uint32_t field, WireType type) { return varint(field << 3 | type); }
std::string bytes_field(uint32_t field, std::string_view bytes) {
    return key(field, kBytes) + varint(bytes.size()) + std::string(bytes);
}

// Event: double wall_time = 1, int64 step = 2, string file_version = 3, Summary summary = 5.
std::string record(double time, int64_t step, const std::string& what) {
    const std::string event =
        key(1, kFixed64) + little_endian(time) + key(2, kVarint) + varint(static_cast<uint64_t>(step)) + what;
    const std::string length = little_endian(uint64_t{event.size()});
    return length + little_endian(masked(crc32c(length))) + event + little_endian(masked(crc32c(event)));
}

class Fields {
public:
    explicit Fields(std::string_view bytes) : rest_(bytes) {}

    // The value of the first field with this number, as a varint.
    std::optional<uint64_t> find(uint64_t wanted) {
        while (!rest_.empty()) {
            const auto tag = number();
            if (!tag) return std::nullopt;
            size_t skipped = 0;
            switch (*tag & 7) {
                case kVarint: {
                    const auto value = number();
                    if (!value || *tag >> 3 == wanted) return value;
                    break;
                }
                case kFixed64: skipped = 8; break;
                case kFixed32: skipped = 4; break;
                case kBytes: {
                    const auto length = number();
                    if (!length || *length > rest_.size()) return std::nullopt;
                    skipped = static_cast<size_t>(*length);
                    break;
                }
                default: return std::nullopt;
            }
            if (skipped > rest_.size()) return std::nullopt;
            rest_.remove_prefix(skipped);
        }
        return std::nullopt;
    }

private:
    std::optional<uint64_t> number() {
        uint64_t value = 0;
        for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
            const auto byte = static_cast<unsigned char>(rest_.front());
            rest_.remove_prefix(1);
            value |= uint64_t{byte & 0x7fu} << shift;
            if (byte < 0x80) return value;
        }
        return std::nullopt;
    }
    std::string_view rest_;
};

}  // namespace

uint32_t crc32c(std::string_view bytes) {
    static constexpr auto kTable = crc_table();
    uint32_t crc = ~0u;
    for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
    return ~crc;
}

std::string event_file_begin(double time) { return record(time, 0, bytes_field(3, "brain.Event:2")); }

std::string scalar_event(double time, int64_t step, const std::map<std::string, double>& values) {
    std::string summary;
    for (const auto& [name, value] : values) {
        // Summary: repeated Value value = 1; Value: string tag = 1, float simple_value = 2.
        summary += bytes_field(
            1, bytes_field(1, name) + key(2, kFixed32) + little_endian(static_cast<float>(value)));
    }
    return record(time, step, bytes_field(5, summary));
}

std::optional<EventRecord> first_event(std::string_view bytes) {
    constexpr size_t kBefore = 12, kBehind = 4;
    if (bytes.size() < kBefore + kBehind) return std::nullopt;
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    if (length > bytes.size() - kBefore - kBehind) return std::nullopt;
    const auto size = static_cast<size_t>(length);
    const auto is_sum = [&](std::string_view of, size_t at) {
        return bytes.substr(at, 4) == little_endian(masked(crc32c(of)));
    };
    const std::string_view event = bytes.substr(kBefore, size);
    if (!is_sum(bytes.substr(0, 8), 8) || !is_sum(event, kBefore + size)) return std::nullopt;
    return EventRecord{kBefore + size + kBehind, static_cast<int64_t>(Fields(event).find(2).value_or(0))};
}

}  // namespace refold
