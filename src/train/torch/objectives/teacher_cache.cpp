#include "train/torch/objectives/teacher_cache.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/sha256.h"
#include "train/torch/trainer.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kRows = 512;  // number of tokens whose logits exist at a time

}  // namespace

TeacherCache::TeacherCache(const TrainRequest& request, int64_t top, const std::vector<int64_t>& fit,
                           const std::vector<int64_t>& held_out)
    : request_(request),
      top_(std::min(top, request.teacher->config.n_vocab)),
      context_(request.data.context()),
      vocabulary_(request.teacher->config.n_vocab) {
    const auto add = [&](const std::vector<int64_t>& numbers, bool apart) {
        for (const int64_t number : numbers) {
            const Sequence sequence{number, apart};
            if (records_.try_emplace(sequence, static_cast<int64_t>(sequences_.size())).second)
                sequences_.push_back(sequence);
        }
    };
    add(held_out, true);
    add(fit, false);
    std::error_code error;
    fs::create_directories(request.folder, error);
    if (error) fail(ErrorCode::io, "train", "cannot make folder '{}': {}", request.folder, error.message());
    const std::string wanted = header();
    header_bytes_ = wanted.size();
    // Processes of one machine have the same folder and other sequences.
    path_ = fmt::format("{}/teacher-{}.bin", request.folder, wanted.substr(wanted.size() - 17, 16));
    if (fs::is_symlink(path_)) fs::remove(path_, error);  // or its target would be overwritten
    if (std::ifstream file(path_, std::ios::binary); file) {
        std::string found(wanted.size(), '\0');
        file.read(found.data(), static_cast<std::streamsize>(found.size()));
        if (file && found == wanted) {
            // Rounding down drops a record that an interrupted run wrote in part.
            done_ = static_cast<int64_t>((fs::file_size(path_) - wanted.size()) / record_bytes());
            done_ = std::min(done_, static_cast<int64_t>(sequences_.size()));
        }
    }
    if (complete()) map();
}

// The first line of the file, equal for files with equal records.
std::string TeacherCache::header() const {
    Sha256 hash;
    const auto add = [&](std::string_view text) {
        hash.update(std::as_bytes(std::span(text.data(), text.size())));
    };
    add(request_.identity);
    for (const Sequence& s : sequences_) add(fmt::format("{} {}\n", s.number, s.held_out));
    return fmt::format("refold teacher {} {} {}\n", top_, context_, hash.hex());
}

void TeacherCache::fill(const Teacher& teacher, at::Device device) {
    const at::NoGradGuard without_gradients;
    const std::string begin = header();
    if (done_ == 0) std::ofstream(path_, std::ios::binary | std::ios::trunc) << begin;
    std::error_code error;
    fs::resize_file(path_, begin.size() + static_cast<size_t>(done_) * record_bytes(), error);
    std::ofstream file(path_, std::ios::binary | std::ios::app);
    const auto check = [&] {
        if (error || !file) fail(ErrorCode::io, "train", "cannot write '{}' - is the disk full?", path_);
    };
    check();
    for (; !complete(); ++done_) {
        const Sequence s = sequences_[static_cast<size_t>(done_)];
        const TeacherLogits logits_of =
            teacher(make_batch(request_.data, std::span(&s.number, 1), s.held_out, device).tokens);
        for (int64_t first = 0; first < context_; first += kRows) {
            const at::Tensor logits = logits_of(first, std::min(kRows, context_ - first));
            const auto [values, ids] = at::topk(at::log_softmax(logits.to(at::kFloat), -1), top_, -1);
            for (const at::Tensor& part :
                 {ids.to(at::kCPU, at::kInt).contiguous(), values.cpu().contiguous()})
                file.write(static_cast<const char*>(part.data_ptr()),
                           static_cast<std::streamsize>(part.nbytes()));
        }
        file.flush();
        check();
        if (request_.prepare)
            request_.prepare("the teacher's logits", done_ + 1, static_cast<int64_t>(sequences_.size()));
        if (request_.stop && request_.stop())
            fail(ErrorCode::interrupted, "train",
                 "interrupted while the teacher ran; run the same again to go on with it");
    }
    file.close();
    check();
    map();
}

void TeacherCache::map() { file_ = std::make_shared<const MappedFile>(path_); }

TeacherLogits TeacherCache::logits(const TrainBatch& batch) const {
    return [this, &batch](int64_t first, int64_t count) {
        const at::Tensor ids = at::empty({count, top_}, at::kInt),
                         values = at::empty({count, top_}, at::kFloat);
        // Ids and values are four bytes each.
        const auto bytes_of = [&](int64_t tokens) { return static_cast<size_t>(tokens * top_) * 4; };
        const auto copy = [&](const at::Tensor& to, int64_t row, const std::byte* from, int64_t rows) {
            std::memcpy(static_cast<std::byte*>(to.data_ptr()) + bytes_of(row), from, bytes_of(rows));
        };
        for (int64_t row = 0; row < count;) {
            // A record consists of blocks of tokens: their ids, then their log probabilities.
            const int64_t token = (first + row) % context_, block = token / kRows * kRows,
                          within = token - block;
            const int64_t size = std::min(kRows, context_ - block),
                          rows = std::min(size - within, count - row);
            const int64_t number = batch.sequences[static_cast<size_t>((first + row) / context_)];
            const std::byte* record =
                file_->bytes().data() + header_bytes_ +
                static_cast<size_t>(records_.at({number, batch.held_out})) * record_bytes() +
                2 * bytes_of(block);
            copy(ids, row, record + bytes_of(within), rows);
            copy(values, row, record + bytes_of(size + within), rows);
            row += rows;
        }
        const at::Device device = batch.tokens.device();
        const at::Tensor log_p = values.to(device);
        const at::Tensor left = (1 - log_p.exp().sum(-1, true)).clamp_min(1e-10);
        const auto others = static_cast<double>(std::max<int64_t>(1, vocabulary_ - top_));
        const at::Tensor rest = (left / others).log();
        return rest.expand({count, vocabulary_}).clone().scatter_(-1, ids.to(device, at::kLong), log_p);
    };
}

}  // namespace refold
