// All verbs that write files or folders: what has the name of the output before, and what else is in the
// folder.
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <filesystem>
#include <map>

#include "cli/refold.h"
#include "cli/tiny_model.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A command whose output is "OUT".
struct Writer {
    const char* name;
    std::vector<std::string> words;
};

// Replaces names by paths in the folder of the test.
std::vector<std::string> words_of(const Writer& writer, const TempFolder& folder, const std::string& output) {
    std::vector<std::string> words;
    for (const std::string& word : writer.words)
        words.push_back(word == "OUT"     ? output
                        : word == "TEXT"  ? folder / "text"
                        : word == "HF"    ? folder / "hf"
                        : word == "BERT"  ? folder / "bert"
                        : word == "LORA"  ? folder / "lora.gguf"
                        : word == "TABLE" ? folder / "papers/000/table-1.yaml"
                        : word == "WORK"  ? folder / "work"
                                          : word);
    return words;
}

void copy_files(const std::vector<std::string>& fixtures, const std::string& folder) {
    fs::create_directories(folder);
    for (const std::string& fixture : fixtures)
        for (const auto& entry : fs::directory_iterator(fs::path(kFixtures) / fixture))
            fs::copy_file(entry.path(), fs::path(folder) / entry.path().filename(),
                          fs::copy_options::skip_existing);
}

class Outputs : public testing::Test {
protected:
    Outputs() {
        write_random_text(folder_ / "text");
        copy_files({"hf/llama_gqa", "tokenizers/bpe_llama3"}, folder_ / "hf");
        copy_files({"hf/bert_encoder", "tokenizers/wordpiece_bert_cased"}, folder_ / "bert");
        fs::create_directories(folder_ / "papers/000");
        fs::create_directories(folder_ / "papers/models");
        fs::copy(kFixtures + "/hf/llama_gqa/config.json", folder_ / "papers/models/small.json");
        write_all(folder_ / "papers/000/table-1.yaml",
                  "place: Table 1\ntitle: sharing\ncolumns:\n  parameters: {measure: parameters}\n"
                  "rows:\n  - {name: dense, model: small, published: [\"176712\"]}\n");
        fs::create_directory(place_);
    }
    Outcome run(const Writer& writer, const std::vector<std::string>& more = {"--overwrite"}) const {
        std::vector<std::string> words = words_of(writer, folder_, out_);
        words.insert(words.end(), more.begin(), more.end());
        return refold(words);
    }
    void make_lora() const {
        const Outcome done = refold({"compress", kModel, "-o", folder_ / "lora.gguf", "--method", "relax"});
        ASSERT_EQ(done.code, 0) << done.err;
    }
    void put_beside(const std::string& name, const std::string& text) const {
        fs::create_directories(fs::path(place_ + "/" + name).parent_path());
        write_all(place_ + "/" + name, text);
    }
    void put(const std::string& name, const std::string& text) const { put_beside("out/" + name, text); }
    // Everything below the folder of the output: types, modes, contents and targets of links.
    std::map<std::string, std::string> all() const {
        std::map<std::string, std::string> found;
        for (const auto& entry : fs::recursive_directory_iterator(place_)) {
            struct stat status {};
            lstat(entry.path().c_str(), &status);
            std::string& what = found[entry.path().lexically_relative(place_).string()];
            what = std::to_string(status.st_mode);
            if (entry.is_symlink()) what += fs::read_symlink(entry.path()).string();
            if (fs::is_regular_file(entry.symlink_status())) what += read_all(entry.path());
        }
        return found;
    }
    void expect_stays(const std::map<std::string, std::string>& before) const {
        const auto now = all();
        for (const auto& [name, what] : before) {
            const auto found = now.find(name);
            ASSERT_NE(found, now.end()) << name;
            EXPECT_TRUE(found->second == what) << name;
        }
    }

    TempFolder folder_;
    const std::string place_ = folder_ / "place", out_ = place_ + "/out";
};

const std::vector<Writer>& file_writers() {
    static const std::vector<Writer> writers = {
        {"compress", {"compress", kModel, "--method", "direct_share", "-o", "OUT"}},
        {"compress --report",
         {"compress", kModel, "--method", "direct_share", "--dry-run", "--report", "OUT"}},
        {"fit", {"fit", kModel, "--ratio", "0.9", "--calib", "TEXT", "-o", "OUT"}},
#ifdef REFOLD_HAVE_TORCH
        {"train",
         {"train", kModel, "--data", "TEXT", "--set", "steps=1", "--set", "context=16", "-o", "OUT"}},
#endif
        {"quantize", {"quantize", kModel, "--type", "q8_0", "-o", "OUT"}},
        {"quantize by method",
         {"quantize", kModel, "--type", "q8_0", "--rounding", "imatrix", "--calib", "TEXT", "-o", "OUT"}},
        {"export", {"export", kModel, "-o", "OUT"}},
        {"export --to native", {"export", kModel, "--to", "native", "-o", "OUT"}},
        {"export --to lora-gguf", {"export", "LORA", "--to", "lora-gguf", "-o", "OUT"}},
        {"logits", {"logits", kModel, "--tokens", "1,2,3", "-o", "OUT"}},
        {"embed", {"embed", "BERT", "text", "-o", "OUT"}},
        {"imatrix", {"imatrix", kModel, "--calib", "TEXT", "-o", "OUT"}},
        {"eval ppl --samples",
         {"eval", "ppl", kModel, "--text", "TEXT", "--max-windows", "1", "--samples", "OUT"}},
        {"eval ppl --report",
         {"eval", "ppl", kModel, "--text", "TEXT", "--max-windows", "1", "--report", "OUT"}},
        {"eval tasks",
         {"eval", "tasks", "HF", "--tasks", "piqa", "--limit", "1", "--data", kFixtures + "/tasks", "-o",
          "OUT"}},
        {"eval tasks --samples",
         {"eval", "tasks", "HF", "--tasks", "piqa", "--limit", "1", "--data", kFixtures + "/tasks",
          "--samples", "OUT"}},
        {"bench --report",
         {"bench", kModel, "--prefill", "8", "--decode", "2", "--rounds", "1", "--baseline", "none",
          "--report", "OUT"}},
        {"analyze --report", {"analyze", kModel, "--what", "weights", "--report", "OUT"}},
        {"report", {"report", kModel, "--format", "json", "-o", "OUT"}},
        {"reproduce", {"reproduce", "TABLE", "--work", "WORK", "-o", "OUT"}},
    };
    return writers;
}

// Reports need an ending.
std::string output_for(const Writer& writer, const std::string& out) {
    const bool report = std::string(writer.name).find("report") != std::string::npos ||
                        std::string(writer.name) == "reproduce";
    return report ? out + ".json" : out;
}

TEST_F(Outputs, DevicesAndFifosAreNeverReplaced) {
    make_lora();
    for (const Writer& writer : file_writers()) {
        const std::string out = output_for(writer, out_), fifo = place_ + "/fifo",
                          device = place_ + "/device";
        std::vector<std::string> words = words_of(writer, folder_, out);
        words.emplace_back("--overwrite");
        ASSERT_EQ(mkfifo(out.c_str(), 0600), 0);
        expect_error(refold(words), 2, {"'" + out + "'", "a FIFO"});
        EXPECT_TRUE(fs::is_fifo(fs::symlink_status(out))) << writer.name;
        fs::rename(out, fifo);
        fs::create_symlink(fifo, out);
        expect_error(refold(words), 2, {"'" + out + "'", "a link to a FIFO"});
        EXPECT_TRUE(fs::is_symlink(out) && fs::is_fifo(fs::symlink_status(fifo))) << writer.name;
        fs::remove(out);
        if (mknod(device.c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0) {  // as root
            fs::rename(device, out);
            expect_error(refold(words), 2, {"'" + out + "'", "a device"});
            EXPECT_TRUE(fs::is_character_file(fs::symlink_status(out))) << writer.name;
        }
        fs::remove_all(place_);
        fs::create_directory(place_);
        if (HasFailure()) FAIL() << writer.name;
    }
}

TEST_F(Outputs, LinksAreReplacedOnlyWithOverwriteAndTheirTargetsNever) {
    make_lora();
    for (const Writer& writer : file_writers()) {
        const std::string out = output_for(writer, out_);
        fs::create_symlink("nowhere", out);
        expect_error(refold(words_of(writer, folder_, out)), 2, {"is a link to 'nowhere'", "--overwrite"});
        EXPECT_EQ(fs::read_symlink(out), "nowhere") << writer.name;
        EXPECT_FALSE(fs::exists(place_ + "/nowhere")) << writer.name;
        fs::remove_all(place_);
        fs::create_directory(place_);
        if (HasFailure()) FAIL() << writer.name;
    }
    const Writer quantize = {"quantize", {"quantize", kModel, "--type", "q8_0", "-o", "OUT"}};
    write_all(place_ + "/target", "mine");
    fs::create_symlink("target", out_);
    EXPECT_EQ(run(quantize).code, 0);
    EXPECT_FALSE(fs::is_symlink(out_));
    EXPECT_EQ(read_all(place_ + "/target"), "mine");
}

const std::vector<Writer>& folder_writers() {
    static const std::vector<Writer> writers = {
        {"export --to hf", {"export", "HF", "--to", "hf", "-o", "OUT"}},
        {"export --to hf in shards", {"export", "HF", "--to", "hf", "--shard-gb", "0.0001", "-o", "OUT"}},
        {"export --to peft", {"export", "LORA", "--to", "peft", "-o", "OUT"}},
        {"analyze", {"analyze", kModel, "--what", "weights", "--no-cache", "-o", "OUT"}},
        {"manual", {"manual", "-o", "OUT"}},
    };
    return writers;
}

std::vector<std::string> overwriting(const Writer& writer) {
    return std::string(writer.name) == "manual" ? std::vector<std::string>{}
                                                : std::vector<std::string>{"--overwrite"};
}

TEST_F(Outputs, EverythingElseInAFolderStays) {
    make_lora();
    for (const Writer& writer : folder_writers()) {
        put("thesis.txt", "mine");
        put(".git/objects/ab/cd", "mine");
        put("onnx/model.onnx", "mine");
        put("read-only/LICENSE", "mine");
        fs::create_directory(out_ + "/empty");
        write_all(place_ + "/beside", "mine");
        fs::create_symlink("../beside", out_ + "/link");
        fs::create_symlink("/nowhere", out_ + "/broken");
        fs::create_directory_symlink("..", out_ + "/up");
        ASSERT_EQ(mkfifo((out_ + "/fifo").c_str(), 0640), 0);
        fs::permissions(out_ + "/thesis.txt", fs::perms(0400));
        fs::permissions(out_ + "/read-only", fs::perms(0555));
        fs::permissions(out_, fs::perms(0750));
        const auto before = all();
        for (int time = 0; time < 2; ++time) {
            const Outcome done = run(writer, overwriting(writer));
            ASSERT_EQ(done.code, 0) << writer.name << done.err;
            EXPECT_GT(all().size(), before.size());
            expect_stays(before);
            size_t beside = 0;
            for (const auto& entry : fs::directory_iterator(place_)) beside += entry.exists() ? 1 : 0;
            EXPECT_EQ(beside, 2U) << writer.name;
        }
        fs::permissions(out_ + "/read-only", fs::perms(0755));
        fs::remove_all(place_);
        fs::create_directory(place_);
        if (HasFailure()) FAIL() << writer.name;
    }
}

TEST_F(Outputs, ALinkToAFolderStays) {
    make_lora();
    for (const Writer& writer : folder_writers()) {
        fs::create_directory(place_ + "/target");
        write_all(place_ + "/target/thesis.txt", "mine");
        fs::create_directory_symlink("target", out_);
        const auto before = all();
        const Outcome done = run(writer, overwriting(writer));
        ASSERT_EQ(done.code, 0) << writer.name << done.err;
        expect_stays(before);
        fs::remove_all(place_);
        fs::create_directory(place_);
    }
}

TEST_F(Outputs, WhatIsNoFolderIsRefusedAndNamed) {
    make_lora();
    for (const Writer& writer : folder_writers()) {
        for (const int kind : {0, 1, 2}) {
            if (kind == 0) write_all(out_, "mine");
            if (kind == 1) mkfifo(out_.c_str(), 0600);
            if (kind == 2) fs::create_symlink("nowhere", out_);
            const auto before = all();
            const Outcome done = run(writer, overwriting(writer));
            EXPECT_NE(done.code, 0) << writer.name;
            EXPECT_THAT(done.err, HasSubstr("'" + out_ + "'")) << writer.name;
            EXPECT_EQ(all(), before) << writer.name;
            fs::remove(out_);
        }
    }
}

// Readers would take them for the model's.
TEST_F(Outputs, AModelOfSomebodyElseIsNotReplaced) {
    const Writer& writer = folder_writers()[0];
    for (const char* name :
         {"config.json", "model.safetensors", "model-00001-of-00002.safetensors",
          "model.safetensors.index.json", "tokenizer.json", "generation_config.json", "README.md"}) {
        put(name, "mine");
        put("thesis.txt", "mine");
        const auto before = all();
        expect_error(run(writer), 2, {"'" + out_ + "'", "'" + std::string(name) + "'"});
        EXPECT_EQ(all(), before) << name;
        fs::remove_all(out_);
    }
    ASSERT_EQ(run(writer, {}).code, 0);
    put("README.md", "edited");
    expect_error(run(writer), 2, {"'README.md'"});
    EXPECT_EQ(read_all(out_ + "/README.md"), "edited");
}

TEST_F(Outputs, AnExportOntoItsOwnFolderKeepsWhatIsNotTheModel) {
    fs::copy(folder_ / "hf", out_);
    for (const char* name : {"LICENSE", "onnx/model.onnx", ".git/HEAD", "README.md", "pytorch_model.bin.txt",
                             "model-old.safetensors", "model-00003-of-00009.safetensors"})
        put(name, "mine");
    fs::permissions(out_ + "/tokenizer.json", fs::perms(0640));
    auto before = all();
    for (const char* replaced : {"out/config.json", "out/model.safetensors", "out/README.md"})
        before.erase(replaced);
    const std::string weights = read_all(out_ + "/model.safetensors");
    for (const char* type : {"f16", "f32", "f32"}) {
        const Outcome done =
            refold({"export", out_, "--to", "hf", "-o", out_, "--overwrite", "--type", type});
        ASSERT_EQ(done.code, 0) << done.err;
        expect_stays(before);
        EXPECT_NE(read_all(out_ + "/model.safetensors"), weights);
        EXPECT_THAT(read_all(out_ + "/config.json"),
                    HasSubstr(type == std::string("f16") ? "float16" : "float32"));
        EXPECT_THAT(read_all(out_ + "/README.md"), HasSubstr("refold"));
        EXPECT_EQ(read_all(out_ + "/README.source.md"), "mine");
        EXPECT_EQ(refold({"logits", out_, "--tokens", "1,2", "-o", folder_ / "logits", "--overwrite"}).code,
                  0);
    }
    // A shard of somebody else would be taken for one of the model's.
    const std::vector<std::string> sharded = {"export", out_,          "--to",       "hf",    "-o",
                                              out_,     "--overwrite", "--shard-gb", "0.0001"};
    expect_error(refold(sharded), 2, {"'model-00003-of-00009.safetensors'"});
    fs::remove(out_ + "/model-00003-of-00009.safetensors");
    // In shards, and whole again: none is left over.
    ASSERT_EQ(refold(sharded).code, 0);
    EXPECT_FALSE(fs::exists(out_ + "/model.safetensors"));
    EXPECT_TRUE(fs::exists(out_ + "/model.safetensors.index.json"));
    ASSERT_EQ(refold({"export", out_, "--to", "hf", "-o", out_, "--overwrite"}).code, 0);
    EXPECT_FALSE(fs::exists(out_ + "/model.safetensors.index.json"));
    EXPECT_FALSE(fs::exists(out_ + "/model-00001-of-00002.safetensors"));
    put("README.md", "edited");
    expect_error(refold({"export", out_, "--to", "hf", "-o", out_, "--overwrite"}), 2, {"'README.md'"});
}

// The names are made of the output's, and somebody may have such a file or folder.
TEST_F(Outputs, FilesBesideTheOutput) {
    const Writer compress = {"compress", {"compress", kModel, "--method", "direct_share", "-o", "OUT"}};
    put_beside("out.work/thesis.txt", "mine");
    put_beside("out.work/train/thesis.txt", "mine");
    put_beside("out.partial-12", "mine");
    write_all(folder_ / "precious", "mine");
    fs::create_symlink("../precious", place_ + "/out.partial-0123456789abcdef");
    auto before = all();
    Outcome done = run(compress);
    ASSERT_EQ(done.code, 0) << done.err;
    expect_stays(before);
    EXPECT_EQ(read_all(folder_ / "precious"), "mine");

    const Writer tasks = {"eval tasks",
                          {"eval", "tasks", "HF", "--tasks", "piqa", "--limit", "1", "--data",
                           kFixtures + "/tasks", "-o", "OUT"}};
    before = all();
    expect_error(run(tasks), 2, {"out.work'"});
    expect_stays(before);
    fs::remove_all(place_ + "/out.work");
    write_all(place_ + "/out.work", "mine\n");
    before = all();
    expect_error(run(tasks), 2, {"out.work'"});
    expect_stays(before);
    fs::rename(place_ + "/out.work", folder_ / "other");
    fs::create_symlink("../other", place_ + "/out.work");
    expect_error(run(tasks), 2, {"out.work'"});
    EXPECT_EQ(read_all(folder_ / "other"), "mine\n");
    fs::remove(place_ + "/out.work");
    EXPECT_EQ(run(tasks).code, 0);
}

TEST_F(Outputs, FilesOfAFrontier) {
    const std::string size = std::to_string(fs::file_size(kModel) / 4000) + "KB";
    write_random_text(folder_ / "held out", 2, 1200);
    const Writer fit = {"fit",
                        {"fit",
                         kModel,
                         "--frontier",
                         size,
                         "--calib",
                         "TEXT",
                         "--calib-tokens",
                         "512",
                         "--probe-tokens",
                         "64",
                         "--sequence-length",
                         "64",
                         "-t",
                         "1",
                         "--max-windows",
                         "1",
                         "--work",
                         "WORK",
                         "--text",
                         folder_ / "held out",
                         "-o",
                         "OUT"}};
    const std::string file = "out-" + size;
    put("thesis.txt", "mine");
    put(".git/HEAD", "mine");
    for (const std::string& name :
         {file + ".gguf", file + ".recipe.yaml", file + ".fit.json", std::string("measures.json")}) {
        put(name, name.ends_with("json") ? "{\"mine\": 1}" : "mine: 1\n");
        const auto before = all();
        for (const bool overwrite : {false, true})
            expect_error(
                run(fit, overwrite ? std::vector<std::string>{"--overwrite"} : std::vector<std::string>{}), 2,
                {"/" + name + "'"});
        EXPECT_EQ(all(), before) << name;
        fs::remove(out_ + "/" + name);
    }
    const auto before = all();
    for (int time = 0; time < 2; ++time) {
        const Outcome done = run(fit);
        ASSERT_EQ(done.code, 0) << done.err;
        expect_stays(before);
    }
}

TEST_F(Outputs, FilesOfAReproduction) {
    fs::create_directories(folder_ / "models");
    fs::copy(kModel, folder_ / "models/small.gguf");
    write_all(folder_ / "papers/000/table-1.yaml", R"(
place: Table 1
title: sharing
columns:
  decode: {measure: command, command: "eval ppl {model} --text {texts}/text --max-windows 1", value: /tokens_scored}
rows:
  - {name: shared, model: small, steps: [{method: direct_share, ratio: 0.3}], published: [""]}
)");
    for (const char* name : {"thesis.txt", ".git/HEAD", "row-1.gguf", "row-1.recipe.yaml"}) put(name, "mine");
    const auto before = all();
    const Outcome done = refold({"reproduce", folder_ / "papers/000/table-1.yaml", "--models",
                                 folder_ / "models", "--texts", folder_ / "", "--work", out_, "--json"});
    ASSERT_EQ(done.code, 0) << done.err;
    EXPECT_THAT(done.out, AllOf(HasSubstr("-o row-1.gguf"), Not(HasSubstr("failed"))));
    expect_stays(before);
    put("numbers.jsonl", "mine\n");
    EXPECT_NE(refold({"reproduce", folder_ / "papers/000/table-1.yaml", "--work", out_}).code, 0);
    EXPECT_EQ(read_all(out_ + "/numbers.jsonl"), "mine\n");
}

#ifdef REFOLD_HAVE_TORCH
TEST_F(Outputs, FilesOfATraining) {
    const Writer train = {"train",
                          {"train", kModel, "--data", "TEXT", "--set", "steps=2", "--set", "context=16",
                           "--set", "batch=2", "--set", "keep=1", "-t", "1", "-o", "OUT"}};
    for (const char* name : {"out.train/step-1/metrics.jsonl", "out.train/step-1/kept-1-of-1.gguf"}) {
        put_beside(name, "{\"step\": 7, \"mine\": true}\n");
        const auto before = all();
        expect_error(run(train), 2, {fs::path(name).filename().string() + "'"});
        expect_stays(before);
        fs::remove(place_ + "/" + name);
    }
    fs::remove_all(place_ + "/out.work");  // what these runs have left
    put_beside("out.train/thesis.txt", "mine");
    put_beside("out.work/train/step-1/thesis.txt", "mine");
    const auto before = all();
    const Outcome done = run(train);
    ASSERT_EQ(done.code, 0) << done.err;
    expect_stays(before);
    EXPECT_FALSE(fs::exists(place_ + "/out.work/train/step-1/checkpoint.safetensors"));
}
#endif

}  // namespace
}  // namespace refold
