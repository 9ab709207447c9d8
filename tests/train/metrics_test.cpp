#include "train/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/error_of.h"
#include "core/temp_folder.h"
#include "train/event_file.h"

namespace refold {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kEvents = "events.out.tfevents.refold";

// A reader of event files that shares no code with the writer: it computes the CRC bit by bit, not by tables.
struct Event {
    double time = 0;
    int64_t step = 0;
    std::string version;
    std::map<std::string, float> values;
};

uint32_t slow_crc(const std::string& bytes) {
    uint32_t crc = 0xffffffffu;
    for (const char c : bytes) {
        for (int bit = 0; bit < 8; ++bit) {
            const bool odd = ((crc ^ (static_cast<unsigned char>(c) >> bit)) & 1u) != 0;
            crc = (crc >> 1) ^ (odd ? 0x82f63b78u : 0u);
        }
    }
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

class Reader {
public:
    explicit Reader(std::string bytes) : bytes_(std::move(bytes)) {}
    bool done() const { return at_ == bytes_.size(); }

    template <typename T>
    T fixed() {
        T out;
        std::memcpy(&out, bytes_.data() + at_, sizeof out);
        EXPECT_LE(at_ += sizeof out, bytes_.size());
        return out;
    }
    uint64_t varint() {
        uint64_t out = 0;
        for (unsigned shift = 0;; shift += 7) {
            const auto byte = fixed<uint8_t>();
            out += uint64_t{byte & 127u} << shift;
            if (byte < 128) return out;
        }
    }
    std::string take(size_t size) {
        at_ += size;
        return bytes_.substr(at_ - size, size);
    }
    std::string string() { return take(static_cast<size_t>(varint())); }

private:
    std::string bytes_;
    size_t at_ = 0;
};

void read_summary(Reader summary, Event& out) {
    while (!summary.done()) {
        EXPECT_EQ(summary.varint(), 10U);  // value
        Reader value(summary.string());
        EXPECT_EQ(value.varint(), 10U);  // tag
        const std::string tag = value.string();
        EXPECT_EQ(value.varint(), 21U);  // simple_value
        out.values[tag] = value.fixed<float>();
        EXPECT_TRUE(value.done());
    }
}

std::vector<Event> events_of(const std::string& bytes) {
    std::vector<Event> out;
    for (Reader file(bytes); !file.done();) {
        const std::string length = file.take(8);
        EXPECT_EQ(file.fixed<uint32_t>(), slow_crc(length));
        const std::string data = file.take(Reader(length).fixed<uint64_t>());
        EXPECT_EQ(file.fixed<uint32_t>(), slow_crc(data));
        Event event;
        for (Reader fields(data); !fields.done();) {
            switch (fields.varint()) {
                case 9: event.time = fields.fixed<double>(); break;
                case 16: event.step = static_cast<int64_t>(fields.varint()); break;
                case 26: event.version = fields.string(); break;
                case 42: read_summary(Reader(fields.string()), event); break;
                default: ADD_FAILURE(); return out;
            }
        }
        out.push_back(event);
    }
    return out;
}

TEST(EventFile, ChecksumIsThatOfTheStandard) {
    EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
    EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
    EXPECT_EQ(crc32c(""), 0u);
}

TEST(EventFile, RecordsThatAreCutOrChangedAreNone) {
    const std::string record = scalar_event(12.5, 300, {{"loss", 2.5}});
    const auto whole = first_event(record + "more");
    ASSERT_TRUE(whole);
    EXPECT_EQ(whole->size, record.size());
    EXPECT_EQ(whole->step, 300);
    for (size_t size = 0; size < record.size(); ++size) EXPECT_FALSE(first_event(record.substr(0, size)));
    for (size_t at = 0; at < record.size(); ++at) {
        std::string changed = record;
        changed[at] = static_cast<char>(changed[at] ^ 1);
        EXPECT_FALSE(first_event(changed)) << at;
    }
}

class Metrics : public testing::Test {
protected:
    void write(int64_t first_step, std::initializer_list<int64_t> steps) {
        MetricsFiles files(folder_ / "", first_step);
        for (const int64_t step : steps)
            files.write({step, {{"loss", 10.0 / static_cast<double>(step + 1)}, {"learning_rate", 0.001}}});
    }
    std::vector<int64_t> steps() {
        std::vector<int64_t> out;
        for (const Event& event : events_of(read_all(folder_ / kEvents))) {
            if (event.version.empty()) out.push_back(event.step);
        }
        return out;
    }

    TempFolder folder_;
};

TEST_F(Metrics, AreJsonLinesAndEvents) {
    {
        MetricsFiles files(folder_ / "", 0);
        files.write({1, {{"loss", 2.5}, {"learning_rate", 0.001}}});
        // The files are complete before they are closed.
        EXPECT_EQ(read_all(folder_ / "metrics.jsonl"), "{\"step\":1,\"learning_rate\":0.001,\"loss\":2.5}\n");
        EXPECT_EQ(events_of(read_all(folder_ / kEvents)).size(), 2U);
        files.write({200, {{"loss", std::nan("")}}});
    }
    EXPECT_THAT(read_all(folder_ / "metrics.jsonl"), HasSubstr("{\"step\":200,\"loss\":null}\n"));
    const auto events = events_of(read_all(folder_ / kEvents));
    ASSERT_EQ(events.size(), 3U);
    EXPECT_EQ(events[0].version, "brain.Event:2");
    EXPECT_GT(events[0].time, 1.7e9);
    EXPECT_EQ(events[1].step, 1);
    EXPECT_EQ(events[1].values, (std::map<std::string, float>{{"loss", 2.5F}, {"learning_rate", 0.001F}}));
    EXPECT_EQ(events[2].step, 200);
    EXPECT_TRUE(std::isnan(events[2].values.at("loss")));
}

TEST_F(Metrics, AResumedRunGoesOnBehindItsFirstStep) {
    write(0, {0, 1, 2, 3, 4});
    const std::string five = read_all(folder_ / "metrics.jsonl");
    write(2, {3});
    EXPECT_THAT(steps(), ElementsAre(0, 1, 2, 3));
    EXPECT_EQ(read_all(folder_ / "metrics.jsonl"), five.substr(0, five.find("{\"step\":4")));
    write(3, {4});
    EXPECT_EQ(read_all(folder_ / "metrics.jsonl"), five);
    EXPECT_EQ(events_of(read_all(folder_ / kEvents)).front().version, "brain.Event:2");
    write(0, {0});  // a new run
    EXPECT_THAT(steps(), ElementsAre(0));
    EXPECT_EQ(read_all(folder_ / "metrics.jsonl"), five.substr(0, five.find('\n') + 1));
}

TEST_F(Metrics, WhatWasCutOffIsTakenOut) {
    write(0, {1, 2, 3});
    const std::string lines = read_all(folder_ / "metrics.jsonl"), events = read_all(folder_ / kEvents);
    write_all(folder_ / "metrics.jsonl", lines.substr(0, lines.size() - 5));
    write_all(folder_ / kEvents, events.substr(0, events.size() - 5));
    write(3, {4});
    EXPECT_THAT(steps(), ElementsAre(1, 2, 4));
    EXPECT_THAT(read_all(folder_ / "metrics.jsonl"),
                testing::EndsWith("\n{\"step\":4,\"learning_rate\":0.001,\"loss\":2.0}\n"));
}

TEST_F(Metrics, OtherFilesOfThatNameAreKept) {
    for (const char* text : {"{\"step\":1}\nhello\n", "{\"step\":1}\n{\"loss\":1}\n"}) {
        write_all(folder_ / "metrics.jsonl", text);
        EXPECT_THAT(error_of([&] { write(1, {2}); }), HasSubstr("metrics.jsonl', line 2"));
        EXPECT_EQ(read_all(folder_ / "metrics.jsonl"), text);
    }
}

TEST_F(Metrics, AFileInThePlaceOfTheFolderAndAFullDiskAreErrors) {
    write_all(folder_ / "file", "");
    EXPECT_THAT(error_of([&] { MetricsFiles(folder_ / "file", 0); }, ErrorCode::io), HasSubstr("file"));
    MetricsFiles files(folder_ / "", 0);
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit small{20, before.rlim_max};
    const auto handler = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    const std::string problem = error_of([&] { files.write({1, {{"loss", 2.5}}}); }, ErrorCode::io);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, handler);
    EXPECT_THAT(problem, testing::AllOf(HasSubstr("cannot write"), HasSubstr("metrics.jsonl")));
}

}  // namespace
}  // namespace refold
