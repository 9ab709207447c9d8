#include "io/torch_file.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/temp_folder.h"
#include "io/dtype.h"
#include "io/torch_writer.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kFolder = REFOLD_FIXTURES "/torch/";

double element(const SafetensorsView& view, size_t i) {
    const auto read = [&]<class Number>(Number value) {
        memcpy(&value, view.data.data() + i * sizeof(value), sizeof(value));
        return static_cast<double>(value);
    };
    if (view.dtype == "F64") return read(double{});
    if (view.dtype == "I64") return read(int64_t{});
    if (view.dtype == "I32") return read(int32_t{});
    if (view.dtype == "BOOL") return read(uint8_t{});
    const DType type = view.dtype == "F16" ? DType::F16 : view.dtype == "BF16" ? DType::BF16 : DType::F32;
    std::vector<float> values(view.data.size() / block_bytes(type));
    dequantize(type, view.data, values);
    return values[i];
}

// Written by PyTorch, with views of one storage, all element types and modules' versions.
TEST(TorchFile, ReadsWhatPyTorchWrote) {
    const SafetensorsFile file = read_torch_file(kFolder + "weights.bin");
    const json expected = json::parse(std::ifstream(kFolder + "weights.json"));
    ASSERT_EQ(file.tensors.size(), expected.size());
    const std::map<std::string, std::string> names{{"torch.float32", "F32"},   {"torch.float16", "F16"},
                                                   {"torch.bfloat16", "BF16"}, {"torch.float64", "F64"},
                                                   {"torch.int64", "I64"},     {"torch.int32", "I32"},
                                                   {"torch.bool", "BOOL"}};
    for (const auto& [name, tensor] : expected.items()) {
        ASSERT_TRUE(file.tensors.contains(name)) << name;
        const SafetensorsView& view = file.tensors.at(name);
        EXPECT_EQ(view.dtype, names.at(tensor["dtype"])) << name;
        EXPECT_EQ(json(view.shape), tensor["shape"]) << name;
        for (size_t i = 0; i < tensor["values"].size(); ++i)
            EXPECT_EQ(element(view, i), tensor["values"][i]) << name;
    }
}

std::string error_of(const std::string& path, ErrorCode code) {
    try {
        read_torch_file(path);
        ADD_FAILURE() << "accepted " << path;
        return "";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        EXPECT_THAT(error.what(), HasSubstr(path));
        return error.what();
    }
}

TEST(TorchFile, WhatIsNoStateDictIsRefused) {
    EXPECT_THAT(error_of(kFolder + "checkpoint.bin", ErrorCode::input), HasSubstr("which is no tensor"));
    EXPECT_THAT(error_of(kFolder + "strides.bin", ErrorCode::unsupported), HasSubstr("strides [1, 4]"));
    EXPECT_THAT(error_of(kFolder + "old.bin", ErrorCode::unsupported), HasSubstr("before version 1.6"));
    error_of(kFolder + "weights.json", ErrorCode::input);
    error_of(kFolder + "none.bin", ErrorCode::io);
}

class MadeFile : public testing::Test {
protected:
    std::string error(const std::string& pickle, ErrorCode code = ErrorCode::input) {
        write_all(path, TorchWriter::zip({{"a/data.pkl", pickle}, {"a/data/0", std::string(16, '\0')}}));
        return error_of(path, code);
    }
    TempFolder folder;
    const std::string path = folder / "model.bin";
};

// What makes a pickle dangerous: functions of the author's choice.
TEST_F(MadeFile, CallsNothing) {
    EXPECT_THAT(error("\x80\x02"
                      "cos\nsystem\n" +
                      TorchWriter::text("touch /tmp/x") + "\x85R."),
                HasSubstr("it calls 'os.system'"));
    EXPECT_THAT(error("\x80\x04" + TorchWriter::text("builtins") + TorchWriter::text("eval") + "\x93."),
                HasSubstr("builtins.eval"));
    EXPECT_THAT(error("\x80\x02(ios\nsystem\n."), HasSubstr("instruction 0x69"));  // INST
}

TEST_F(MadeFile, LyingPicklesAreRefused) {
    const std::string storage = "(" + TorchWriter::text("storage") + "ctorch\nFloatStorage\n" +
                                TorchWriter::text("0") + TorchWriter::text("cpu") + "K\x04tQ";
    const auto tensor = [&](const std::string& offset, const std::string& shape, const std::string& strides) {
        return "\x80\x02}" + TorchWriter::text("w") + "ctorch._utils\n_rebuild_tensor_v2\n(" + storage +
               offset + shape + strides + "\x89)tRs.";
    };
    const std::string zero("K\0", 2);
    write_all(path, TorchWriter::zip({{"a/data.pkl", tensor(zero, "K\x04\x85", "K\x01\x85")},
                                      {"a/data/0", std::string(16, '\0')}}));
    EXPECT_EQ(read_torch_file(path).tensors.at("w").shape, std::vector<int64_t>{4});
    EXPECT_THAT(error(tensor(zero, "K\x05\x85", "K\x01\x85")),
                HasSubstr("5 elements from 0 on in storage '0', which has 4"));
    EXPECT_THAT(error(tensor("K\x01", "K\x04\x85", "K\x01\x85")), HasSubstr("4 elements from 1 on"));
    EXPECT_THAT(error(tensor("J\xff\xff\xff\xff", "K\x04\x85", "K\x01\x85")), HasSubstr("another form"));
    EXPECT_THAT(error(tensor(zero, "J\xff\xff\xff\xff\x85", "K\x01\x85")),
                HasSubstr("the number -1 in a shape"));
    EXPECT_THAT(
        error(tensor(zero, "J\xff\xff\xff\x7fJ\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x87", "K\x01K\x01K\x01\x87"),
              ErrorCode::unsupported),
        HasSubstr("strides"));
    error(tensor(zero, "K\x04\x85", ")"));
    error("\x80\x02N.");
    error("\x80\x02}");
    error("\x80\x02s.");
    error("\x80\x02}}.");
    error("\x80\x02h\x05.");
    error("\x80\x01}.");
    EXPECT_THAT(error("\x80\x02)" + std::string(100, '\x85') + "."), HasSubstr("too deep"));
    EXPECT_THAT(error("\x80\x02" + std::string(3'000'000, ')') + "."), HasSubstr("too many"));
}

TEST_F(MadeFile, LyingArchivesAreRefused) {
    const std::string whole = TorchWriter::zip({{"a/data.pkl", "\x80\x02}."}});
    write_all(path, whole);
    EXPECT_TRUE(read_torch_file(path).tensors.empty());
    for (size_t size = 0; size < whole.size(); ++size) {
        write_all(path, whole.substr(0, size));
        EXPECT_THROW(read_torch_file(path), Error) << size;
    }
    std::string packed = whole;
    packed[packed.find("PK\1\2") + 10] = 8;  // deflated
    write_all(path, packed);
    EXPECT_THAT(error_of(path, ErrorCode::unsupported), HasSubstr("compressed"));
    write_all(path, TorchWriter::zip({{"a/data.pkl", "."}, {"a/data.pkl", "."}}));
    EXPECT_THAT(error_of(path, ErrorCode::input), HasSubstr("two entries"));
    write_all(path, TorchWriter::zip({{"a/other", "."}}));
    EXPECT_THAT(error_of(path, ErrorCode::input), HasSubstr("no data.pkl"));
    write_all(path, TorchWriter::zip({{"a/data.pkl", "\x80\x02}."}, {"a/byteorder", "big"}}));
    EXPECT_THAT(error_of(path, ErrorCode::unsupported), HasSubstr("byte order 'big'"));
}

}  // namespace
}  // namespace refold
