// Folders of models that nobody has looked at: each is refused, in little time and memory, and nothing waits
// for a FIFO or reads a device.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/temp_folder.h"
#include "model/adapter/adapter.h"
#include "model/load.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

// Runs the body in a process with little time and memory. Returns the error that it throws, or how it ended.
std::string outcome(const std::function<void()>& body) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return "no pipe";
    const pid_t child = fork();
    if (child == 0) {
#ifdef __SANITIZE_ADDRESS__
        constexpr rlim_t kSeconds = 200;
#else
        constexpr rlim_t kSeconds = 20;
#endif
        const rlimit seconds{kSeconds, kSeconds}, none{0, 0};
        setrlimit(RLIMIT_CPU, &seconds);
#ifndef __SANITIZE_ADDRESS__  // its shadow alone is larger
        const rlimit memory{rlim_t{3} << 30, rlim_t{3} << 30};
        setrlimit(RLIMIT_DATA, &memory);
#endif
        setrlimit(RLIMIT_CORE, &none);
        alarm(3 * kSeconds);  // where it waits
        std::string said = "accepted";
        try {
            body();
        } catch (const Error& error) {
            said = error.what();
        } catch (const std::exception& error) {
            said = std::string("no Error, but ") + error.what();
        }
        const ssize_t written = write(ends[1], said.data(), said.size());
        _exit(written < 0 ? 1 : 0);
    }
    close(ends[1]);
    std::string said;
    char piece[4096];
    for (ssize_t size; (size = read(ends[0], piece, sizeof piece)) > 0;)
        said.append(piece, static_cast<size_t>(size));
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status)) : said;
}

class HostileFiles : public testing::Test {
protected:
    HostileFiles() {
        for (const char* file : {"config.json", "model.safetensors"})
            fs::copy_file(std::string(REFOLD_FIXTURES "/hf/llama_gqa/") + file, folder / file);
        fs::copy_file(REFOLD_FIXTURES "/tokenizers/bpe_gpt2/tokenizer.json", folder / "tokenizer.json");
    }
    std::string loaded() {
        return outcome([&] { load_model(fs::path(folder / "config.json").parent_path()); });
    }
    // The error that the file has to have its name in.
    std::string refused(const std::string& file) {
        std::string said = loaded();
        EXPECT_THAT(said, testing::AllOf(testing::StartsWith("["), testing::HasSubstr(file)));
        return said;
    }
    void put(const std::string& file, const std::string& text) {
        fs::remove_all(folder / file);
        write_all(folder / file, text);
    }

    TempFolder folder;
};

TEST_F(HostileFiles, WhatIsNoRegularFileIsRefused) {
    ASSERT_EQ(loaded(), "accepted");
    for (const std::string file :
         {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
          "generation_config.json", "special_tokens_map.json", "chat_template.jinja"}) {
        const fs::path path = folder / file;
        std::string before;
        if (fs::exists(path)) before = read_all(path);
        fs::remove(path);
        ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
        refused(file);
        fs::remove(path);
        for (const char* device : {"/dev/zero", "/dev/full", "/dev/tty"}) {
            fs::create_symlink(device, path);
            refused(file);
            fs::remove(path);
        }
        fs::create_directory(path);
        refused(file);
        fs::remove(path);
        fs::create_symlink(path.filename(), path);  // to itself
        const std::string said = loaded();
        EXPECT_THAT(said, testing::AnyOf("accepted", testing::StartsWith("["))) << file;
        fs::remove(path);
        if (!before.empty()) write_all(path, before);
    }
}

TEST_F(HostileFiles, JsonIsBounded) {
    const std::string open(99'000'000, '[');
    std::string objects = "1";
    for (int i = 0; i < 200; ++i) objects = "{\"a\":" + objects + "}";
    for (const std::string file : {"config.json", "tokenizer.json", "tokenizer_config.json",
                                   "generation_config.json", "special_tokens_map.json"}) {
        const fs::path path = folder / file;
        std::string before;
        if (fs::exists(path)) before = read_all(path);
        for (const std::string& text : {open, objects}) {
            put(file, text);
            EXPECT_THAT(refused(file), testing::HasSubstr("nested too deep"));
        }
        put(file, "");
        fs::resize_file(path, uint64_t{1} << 42);
        refused(file);
        put(file, before);
        if (before.empty()) fs::remove(path);
    }
}

TEST_F(HostileFiles, AnIndexStaysInItsFolder) {
    fs::rename(folder / "model.safetensors", folder / "a.safetensors");
    const auto index = [&](const std::string& shard) {
        put("model.safetensors.index.json",
            nlohmann::json{{"weight_map", {{"model.norm.weight", shard}}}}.dump());
    };
    for (const char* shard : {"../a.safetensors", "/etc/passwd", "x/../../a", "./a.safetensors", "..", ".",
                              "", "a/b", "//a.safetensors"}) {
        index(shard);
        EXPECT_THAT(loaded(), testing::StartsWith("[")) << shard;
    }
    ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
    index("fifo");
    refused("fifo");
}

std::string safetensors(const std::string& header, size_t data) {
    uint64_t size = header.size();
    std::string out(sizeof size, '\0');
    memcpy(out.data(), &size, sizeof size);
    return out + header + std::string(data, '\0');
}

TEST_F(HostileFiles, HeadersOfSafetensorsAreBounded) {
    put("model.safetensors", safetensors(std::string(99'000'000, '['), 0));
    EXPECT_THAT(refused("model.safetensors"), testing::HasSubstr("nested too deep"));
    std::string many = "{";
    for (size_t i = 0; many.size() < 30'000'000; ++i) many += fmt::format("\"{:x}\":{{}},", i);
    many.back() = '}';
    put("model.safetensors", safetensors(many, 0));
    refused("model.safetensors");
    many = "{\"x\":[";
    while (many.size() < 60'000'000) many += "[],";
    many.back() = ']';
    put("model.safetensors", safetensors(many + "}", 0));
    EXPECT_THAT(refused("model.safetensors"), testing::HasSubstr("too large"));
}

TEST_F(HostileFiles, AdaptersAreBounded) {
    const TempFolder adapter;
    const std::string path = fs::path(adapter / "x").parent_path();
    fs::copy_file(folder / "model.safetensors", adapter / "adapter_model.safetensors");
    const auto read = [&] {
        return outcome([&] {
            const Model model = load_model(fs::path(folder / "config.json").parent_path());
            load_adapter(path, model);
        });
    };
    write_all(adapter / "adapter_config.json", std::string(1'000'000, '['));
    EXPECT_THAT(read(), testing::HasSubstr("nested too deep"));
    write_all(adapter / "adapter_config.json", R"({"peft_type": "LORA", "alpha_pattern": {"((a*)*)*b": 2}})");
    EXPECT_THAT(read(), testing::HasSubstr("not known"));
    write_all(
        adapter / "adapter_config.json",
        nlohmann::json{{"peft_type", "LORA"}, {"alpha_pattern", {{std::string(1'000'000, '('), 2}}}}.dump());
    EXPECT_THAT(read(), testing::HasSubstr("not known"));
    fs::remove(adapter / "adapter_config.json");
    ASSERT_EQ(mkfifo((adapter / "adapter_config.json").c_str(), 0600), 0);
    EXPECT_THAT(read(), testing::HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace refold
