// TensorBoard event files with scalars: Event protocol buffers in TFRecord framing
// (tensorflow/core/util/event.proto, summary.proto, lib/io/record_writer.cc).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace refold {

// CRC-32C (Castagnoli, RFC 3720).
uint32_t crc32c(std::string_view bytes);

// The first record of a file, which holds the format version. `time`: seconds since 1970.
std::string event_file_begin(double time);
// One record with the scalars of a step, by name of the curve.
std::string scalar_event(double time, int64_t step, const std::map<std::string, double>& values);

// The record at the beginning of `bytes`: its size with framing, and the step of its event (0 when it has
// none). Nothing when the record is incomplete or its checksums do not match.
struct EventRecord {
    size_t size = 0;
    int64_t step = 0;
};
std::optional<EventRecord> first_event(std::string_view bytes);

}  // namespace refold
