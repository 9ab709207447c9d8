#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/temp_folder.h"

namespace refold {
namespace {

std::string raw_file(const std::string& header, size_t data_bytes, uint64_t length) {
    std::string bytes(sizeof(length), '\0');
    memcpy(bytes.data(), &length, sizeof(length));
    return bytes + header + std::string(data_bytes, 'd');
}
std::string raw_file(const std::string& header, size_t data_bytes) {
    return raw_file(header, data_bytes, header.size());
}

void expect_error(const std::string& bytes, ErrorCode code, const std::vector<std::string>& parts) {
    const TempFolder folder;
    const std::string path = folder / "lying.safetensors";
    write_all(path, bytes);
    try {
        read_safetensors(path);
        ADD_FAILURE() << "accepted, expected an error with '" << (parts.empty() ? "" : parts[0]) << "'";
    } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_EQ(error.code(), code) << text;
        EXPECT_TRUE(text.starts_with("[safetensors] ")) << text;
        EXPECT_NE(text.find("lying.safetensors"), std::string::npos) << text;
        for (const auto& part : parts)
            EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
    }
}

std::vector<float> floats(const SafetensorsView& view) {
    std::vector<float> values(view.data.size() / sizeof(float));
    if (!values.empty()) memcpy(values.data(), view.data.data(), view.data.size());
    return values;
}

TEST(Safetensors, RoundTrip) {
    const TempFolder folder;
    const std::string path = folder / "x.safetensors";
    const std::vector<float> a{1, 2, 3, 4, 5, 6}, scalar{INFINITY}, none;
    write_safetensors(path, false, {{"z", {2, 3}, a}, {"größe \"a\"", {}, scalar}, {"empty", {0, 4}, none}},
                      {{"format", "pt"}, {"note", "ä\n"}});
    const auto file = read_safetensors(path);
    ASSERT_EQ(file.tensors.size(), 3u);
    EXPECT_EQ(file.tensors.at("z").dtype, "F32");
    EXPECT_EQ(file.tensors.at("z").shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(floats(file.tensors.at("z")), a);
    EXPECT_TRUE(file.tensors.at("größe \"a\"").shape.empty());
    EXPECT_EQ(floats(file.tensors.at("größe \"a\"")), scalar);
    EXPECT_TRUE(file.tensors.at("empty").data.empty());
    EXPECT_EQ(file.metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"note", "ä\n"}}));
    EXPECT_EQ(folder.files(), std::vector<std::string>{"x.safetensors"});
}

TEST(Safetensors, BytesOfTheFile) {
    const TempFolder folder;
    const std::vector<float> one{1.0f};
    write_safetensors(folder / "x", false, {{"t", {1}, one}});
    const std::string header = R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
    EXPECT_EQ(read_all(folder / "x"), raw_file(padded, 0) + std::string("\x00\x00\x80\x3F", 4));
}

TEST(Safetensors, EmptyFileOfTheFormat) {
    const TempFolder folder;
    write_safetensors(folder / "x", false, {});
    EXPECT_TRUE(read_safetensors(folder / "x").tensors.empty());
}

TEST(Safetensors, OtherTypes) {
    const TempFolder folder;
    write_all(folder / "x", raw_file(R"({"ids":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
                                     R"("h":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},)"
                                     R"("b":{"dtype":"BOOL","shape":[1],"data_offsets":[24,25]},)"
                                     R"("f":{"dtype":"F16","shape":[1],"data_offsets":[22,24]}})",
                                     25));
    const auto file = read_safetensors(folder / "x");
    EXPECT_EQ(file.tensors.at("ids").data.size(), 16u);
    EXPECT_EQ(file.tensors.at("h").dtype, "BF16");
    EXPECT_EQ(file.tensors.at("b").data.size(), 1u);
}

TEST(Safetensors, TruncationAtEveryByte) {
    const TempFolder folder;
    const std::vector<float> a(5, 1.0f), b(3, 2.0f);
    write_safetensors(folder / "x", false, {{"a", {5}, a}, {"b", {3}, b}}, {{"k", "v"}});
    const std::string whole = read_all(folder / "x");
    for (size_t size = 0; size < whole.size(); ++size) {
        expect_error(whole.substr(0, size), ErrorCode::input, {});
        if (HasFailure()) FAIL() << "at " << size << " of " << whole.size() << " bytes";
    }
}

TEST(Safetensors, HeaderLies) {
    expect_error("1234567", ErrorCode::input, {"file size", "7 bytes"});
    expect_error(raw_file("{}", 0, 3), ErrorCode::input, {"header length", "3 bytes", "at most 2"});
    expect_error(raw_file("{}", 0, ~uint64_t{0}), ErrorCode::input,
                 {"header length", "18446744073709551615"});
    expect_error(raw_file("", 0), ErrorCode::input, {"header"});
    expect_error(raw_file("{\"a\":", 0), ErrorCode::input, {"header", "JSON"});
    expect_error(raw_file("[]", 0), ErrorCode::input, {"header", "array", "object"});
    expect_error(raw_file("{\"\xFF\":1}", 0), ErrorCode::input, {"header"});
    expect_error(raw_file("{\"a\":" + std::string(100000, '['), 0), ErrorCode::input, {"header"});
    expect_error(raw_file(R"({"__metadata__":1})", 0), ErrorCode::input, {"__metadata__"});
    expect_error(raw_file(R"({"__metadata__":{"k":1}})", 0), ErrorCode::input, {"__metadata__.k", "number"});
    expect_error(raw_file("{}", 1), ErrorCode::input, {"data", "1 bytes", "expected 0"});
}

TEST(Safetensors, TensorLies) {
    const auto entry = [](const std::string& text, size_t data_bytes, const std::vector<std::string>& parts) {
        std::vector<std::string> all{"tensor 't'"};
        all.insert(all.end(), parts.begin(), parts.end());
        expect_error(raw_file("{\"t\":" + text + "}", data_bytes), ErrorCode::input, all);
    };
    entry("1", 0, {"number", "object"});
    entry(R"({"shape":[1],"data_offsets":[0,4]})", 4, {"dtype"});
    entry(R"({"dtype":"F32","data_offsets":[0,4]})", 4, {"shape"});
    entry(R"({"dtype":"F32","shape":[1]})", 4, {"data_offsets"});
    entry(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", 4, {"shape", "whole numbers"});
    entry(R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})", 4, {"shape", "whole numbers"});
    entry(R"({"dtype":"F32","shape":["1"],"data_offsets":[0,4]})", 4, {"shape", "whole numbers"});
    entry(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]})", 4,
          {"shape", "whole numbers"});
    entry(R"({"dtype":"F32","shape":[4294967296,4294967297],"data_offsets":[0,4]})", 4,
          {"4 bytes", "more than 2^64"});
    entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4, {"4 bytes", "expected 8", "F32"});
    entry(R"({"dtype":"F16","shape":[1],"data_offsets":[0,4]})", 4, {"expected 2", "F16"});
    entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,8]})", 8, {"3 data_offsets"});
    entry(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", 4, {"[4, 0]"});
    entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 3, {"[0, 4]", "3 bytes"});
    entry(R"({"dtype":"F32","shape":[1],"data_offsets":[9223372036854775804,9223372036854775807]})", 4,
          {"inside the 4 bytes"});
    expect_error(raw_file(R"({"t":{"dtype":"X9","shape":[1],"data_offsets":[0,4]}})", 4),
                 ErrorCode::unsupported, {"tensor 't'", "'X9'"});
}

TEST(Safetensors, OverlapsGapsAndTwins) {
    const auto two = [](const char* second, const char* range) {
        return std::string(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},")") + second +
               R"(":{"dtype":"F32","shape":[1],"data_offsets":)" + range + "}}";
    };
    expect_error(raw_file(two("b", "[2,6]"), 6), ErrorCode::input, {"tensor 'b'", "byte 2", "expected 4"});
    expect_error(raw_file(two("b", "[0,4]"), 4), ErrorCode::input, {"byte 0", "expected 4"});
    expect_error(raw_file(two("b", "[8,12]"), 12), ErrorCode::input, {"tensor 'b'", "byte 8", "expected 4"});
    expect_error(raw_file(two("b", "[4,8]"), 9), ErrorCode::input, {"data", "9 bytes", "expected 8"});
    expect_error(raw_file(two("a", "[4,8]"), 8), ErrorCode::input, {"'a'", "twice"});
}

TEST(Safetensors, WriterRefusals) {
    const TempFolder folder;
    const std::vector<float> data(4);
    const auto refused = [&](const std::vector<SafetensorsTensor>& tensors, ErrorCode code,
                             const std::string& part) {
        try {
            write_safetensors(folder / "x", false, tensors);
            ADD_FAILURE() << part;
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), code) << error.what();
            EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
        }
    };
    refused({{"t", {5}, data}}, ErrorCode::internal, "'t'");
    refused({{"t", {-1, -4}, data}}, ErrorCode::internal, "'t'");
    refused({{"t", {4}, data}, {"t", {4}, data}}, ErrorCode::internal, "taken");
    refused({{"__metadata__", {4}, data}}, ErrorCode::internal, "taken");
    refused({{"\xFF", {4}, data}}, ErrorCode::input, "UTF-8");
    EXPECT_THROW(write_safetensors(folder / "x", false, {}, {{"k", "\xC3"}}), Error);
    EXPECT_TRUE(folder.files().empty());
    write_all(folder / "x", "precious");
    EXPECT_THROW(write_safetensors(folder / "x", false, {}), Error);
    EXPECT_EQ(read_all(folder / "x"), "precious");
}

TEST(Safetensors, MissingFile) {
    const TempFolder folder;
    try {
        read_safetensors(folder / "none");
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
    }
}

}  // namespace
}  // namespace refold
