// The teacher's most probable tokens of every sequence of a run, computed once and kept in a mapped file.
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

// The teacher's logits of a batch of sequences, `tokens` [B, T] (int64).
using Teacher = std::function<TeacherLogits(const at::Tensor& tokens)>;

// Per token `top` pairs of id (int32) and log probability (float32). What is left of the probability counts
// as spread evenly over the other tokens.
class TeacherCache {
public:
    // In the request's folder, one file per process. What an interrupted run has computed is found again; the
    // file of another run, teacher or `top` is begun anew.
    TeacherCache(const TrainRequest& request, int64_t top, const std::vector<int64_t>& fit,
                 const std::vector<int64_t>& held_out);

    bool complete() const { return done_ == static_cast<int64_t>(sequences_.size()); }
    // Throws Error(io) when the disk is full, Error(interrupted).
    void fill(const Teacher& teacher, at::Device device);
    // Of a batch of these sequences: logits [n, n_vocab], which are log probabilities.
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
