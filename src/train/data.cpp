#include "train/data.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/file_hash.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "core/sha256.h"
#include "core/text.h"
#include "train/token_file.h"

namespace refold {
namespace {

constexpr const char* kComponent = "training data";

// Held while searching for and writing the token file. On a file system without locks every process writes
// the file, and the last one remains.
class FolderLock {
public:
    explicit FolderLock(const std::string& folder)
        : descriptor_(
              ::open((folder + "/tokens.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644)) {
        if (descriptor_ < 0)
            fail(ErrorCode::io, kComponent, "cannot write to '{}': {}", folder, strerror(errno));
        while (flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) check_interrupt();
    }
    ~FolderLock() { close(descriptor_); }
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;

private:
    int descriptor_;
};

std::string hash_of(const std::string& text) { return sha256_hex(std::as_bytes(std::span(text))); }

// Hash of everything that determines the tokens; names and paths of the files do not.
std::string identity_of(const TrainDataOptions& options, const TrainTokenizer& tokenizer) {
    std::string text = fmt::format("tokens 1\n{}\n{}\n", tokenizer.identity,
                                   options.responses_only ? "responses" : "everything");
    for (const auto& path : options.files)
        text += fmt::format("{} {}\n", remembered_sha256(path), holds_records(path) ? "records" : "text");
    return hash_of(text);
}

void write_tokens(const std::string& path, const std::string& identity, const TrainDataOptions& options,
                  const TrainTokenizer& tokenizer) {
    uint64_t bytes = 0;
    for (const auto& file : options.files) bytes += std::filesystem::file_size(file);
    TokenFileWriter writer(path, identity);
    Progress progress("tokens of the training text", bytes, "bytes");
    for (const auto& name : options.files) {
        const MappedFile file(name);
        const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
        size_t read = 0, released = 0;
        for_records(text, name, [&](const TrainRecord& record, const RecordLocation& location, size_t size) {
            const auto* part = std::get_if<TextRecord>(&record);
            for (const TrainDocument& document :
                 tokenize(record, tokenizer, options.responses_only, location))
                writer.add(document, part == nullptr || part->ends);
            read = std::min(read + size, text.size());
            if (constexpr size_t kOften = 64 << 20; read - released > kOften)
                file.release(file.bytes().subspan(std::exchange(released, read), kOften));
            progress.advance(size, format_count(writer.tokens()) + " tokens");
        });
    }
    writer.commit();
    progress.finish(format_count(writer.tokens()) + " tokens");
}

}  // namespace

TrainData TrainData::open(const TrainDataOptions& options, const TrainTokenizer& tokenizer) {
    if (options.files.empty())
        fail(ErrorCode::usage, kComponent, "no files: name at least one text to train on");
    if (options.context < 1)
        fail(ErrorCode::usage, kComponent, "a context of {} tokens, expected at least 1", options.context);
    if (!(options.held_out >= 0 && options.held_out < 1))
        fail(ErrorCode::usage, kComponent, "{} of the sequences held out, expected less than all",
             options.held_out);
    const std::string identity = identity_of(options, tokenizer);
    std::error_code error;
    std::filesystem::create_directories(options.folder, error);
    if (error)
        fail(ErrorCode::io, kComponent, "cannot make folder '{}': {}", options.folder, error.message());
    const std::string path = options.folder + "/tokens.bin";
    std::optional<TokenFile> file;
    {
        const FolderLock lock(options.folder);
        file = TokenFile::open(path, identity);
        if (!file) {
            write_tokens(path, identity, options, tokenizer);
            file = TokenFile::open(path, identity);
        }
    }
    if (!file) fail(ErrorCode::io, kComponent, "'{}' was written and is another file now", path);
    TrainData out;
    const auto kept = std::make_shared<const TokenFile>(std::move(*file));
    out.owner_ = kept;
    out.tokens_ = kept->tokens();
    out.is_scored_ = kept->scored();
    out.documents_ = static_cast<int64_t>(kept->documents());
    out.context_ = out.distance_ = options.context;
    out.identity_ =
        hash_of(fmt::format("{}\ncontext {}\nheld out {}\n", identity, options.context, options.held_out));
    out.divide(options);
    return out;
}

TrainData TrainData::of(const std::vector<std::vector<int32_t>>& fit,
                        const std::vector<std::vector<int32_t>>& held_out, std::string identity) {
    struct Memory {
        std::vector<int32_t> tokens;
        std::vector<uint8_t> scored;
    };
    const auto memory = std::make_shared<Memory>();
    TrainData out;
    const size_t length = fit.empty() ? 0 : fit.front().size();
    for (const auto* part : {&fit, &held_out}) {
        for (const std::vector<int32_t>& sequence : *part) {
            if (sequence.size() != length || length < 2)
                fail(ErrorCode::internal, kComponent, "a sequence of {} tokens, the first one has {}",
                     sequence.size(), length);
            (part == &fit ? out.fit_ : out.held_out_).push_back(out.documents_++);
            memory->tokens.insert(memory->tokens.end(), sequence.begin(), sequence.end());
        }
    }
    memory->scored.assign(memory->tokens.size(), 1);
    out.tokens_ = memory->tokens;
    out.is_scored_ = memory->scored;
    out.owner_ = memory;
    out.distance_ = static_cast<int64_t>(length);
    out.context_ = out.distance_ - 1;
    out.scored_ = out.documents_ * out.context_;
    out.identity_ = std::move(identity);
    return out;
}

void TrainData::divide(const TrainDataOptions& options) {
    const auto is_scored = [](uint8_t s) { return s != 0; };
    scored_ = std::ranges::count_if(is_scored_, is_scored);
    std::vector<int64_t> usable;
    for (int64_t n = 0; n < (tokens() - 1) / context_; ++n) {
        if (std::ranges::any_of(sequence(n).scored.subspan(1), is_scored)) usable.push_back(n);
    }
    if (usable.size() < 2) {
        fail(ErrorCode::input, kComponent,
             "too little text: '{}'{} has {} tokens in {} documents, {} of them scored, which gives {} "
             "sequences of {} tokens; expected two or more - give more text or a smaller context",
             options.files.front(), options.files.size() > 1 ? " and the others" : "", tokens(), documents(),
             scored_, usable.size(), context_);
    }
    const size_t count = usable.size();
    const size_t held_out =
        options.held_out == 0
            ? 0
            : std::clamp<size_t>(
                  static_cast<size_t>(std::lround(options.held_out * static_cast<double>(count))), 1,
                  count - 1);
    // Holds out the middle sequence of each of `held_out` equal parts.
    for (size_t i = 0; i < count; ++i) {
        const size_t next = held_out_.size();
        const bool here = next < held_out && i == (2 * next + 1) * count / (2 * held_out);
        (here ? held_out_ : fit_).push_back(usable[i]);
    }
}

TrainData::Sequence TrainData::sequence(int64_t number) const {
    const auto first = static_cast<size_t>(number * distance_), count = static_cast<size_t>(context_) + 1;
    return {tokens_.subspan(first, count), is_scored_.subspan(first, count)};
}

}  // namespace refold
