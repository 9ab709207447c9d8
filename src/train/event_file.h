// TensorBoard's event files: records of TFRecord framing that hold protocol buffers of type Event, as far as
// curves of numbers need them (tensorflow/core/util/event.proto, summary.proto, lib/io/record_writer.cc).
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

// The first record of a file: the version of the format. `time`: seconds since 1970.
std::string event_file_begin(double time);
// One record: the numbers of a step, each a curve of that name.
std::string scalar_event(double time, int64_t step, const std::map<std::string, double>& values);

// The record at the beginning of `bytes` with its framing: its size, and the step of the event in it (0 where
// it names none). Nothing when it is incomplete or does not have the checksums that it names.
struct EventRecord {
    size_t size = 0;
    int64_t step = 0;
};
std::optional<EventRecord> first_event(std::string_view bytes);

}  // namespace refold
