// Caches the teacher's most probable tokens for every sequence of a run in a memory-mapped file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/files.h"
#include "train/torch/losses.h"
#include "train/torch/objective.h"

namespace refold {

// The teacher's logits for a batch of sequences, `tokens` [B, T] (int64).
using Teacher = std::function<TeacherLogits(const at::Tensor& tokens)>;

// Keeps `top` pairs of id (int32) and log probability (float32) per token. The remaining probability is
// spread evenly over the other tokens.
class TeacherCache {
public:
    // Opens the file for these sequences in the request's folder and keeps the records of an interrupted run.
    // Another run, teacher or `top`, or another number of processes has another file.
    TeacherCache(const TrainRequest& request, int64_t top, const std::vector<int64_t>& fit,
                 const std::vector<int64_t>& held_out);

    bool complete() const { return done_ == static_cast<int64_t>(sequences_.size()); }
    // Throws Error(io) when the disk is full, Error(interrupted).
    void fill(const Teacher& teacher, at::Device device);
    // The log probabilities [n, n_vocab] of a batch of these sequences, as logits.
    TeacherLogits logits(const TrainBatch& batch) const;

private:
    struct Sequence {
        int64_t number;
        bool held_out;
        auto operator<=>(const Sequence&) const = default;
    };
    size_t record_bytes() const {
        return static_cast<size_t>(context_ * top_) * (sizeof(int32_t) + sizeof(float));
    }
    std::string header() const;
    void map();

    const TrainRequest& request_;
    int64_t top_, context_, vocabulary_;
    std::vector<Sequence> sequences_;  // in the order of their records
    std::map<Sequence, int64_t> records_;
    std::string path_;
    size_t header_bytes_ = 0;
    int64_t done_ = 0;
    std::shared_ptr<const MappedFile> file_;
};

}  // namespace refold
