// Answers of a run that has not finished, on disk: a run that was interrupted goes on where it stopped.
#pragma once

#include <cstdio>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

#include "exit/exit_trace.h"
#include "tasks/metrics.h"

namespace refold {

class WorkFile {
public:
    // Reads the answers that an earlier run with the same key left at `path`; what is there of another key
    // is replaced. Throws Error(io) when the file cannot be written.
    WorkFile(std::string path, const std::string& key);
    // A file without answers goes.
    ~WorkFile();
    WorkFile(const WorkFile&) = delete;
    WorkFile& operator=(const WorkFile&) = delete;

    using Place = std::pair<size_t, size_t>;  // task of the run, request of the task
    const Likelihood* likelihood(Place place) const;
    const std::string* text(Place place) const;
    // Of the tokens that the answer took; null where it was kept without.
    const ExitCounts* exits(Place place) const;
    // Kept at once. Throws Error(io), e.g. when the disk is full.
    void add(Place place, const Likelihood& likelihood, const ExitCounts* exits = nullptr);
    void add(Place place, const std::string& text, const ExitCounts* exits = nullptr);

    const std::string& path() const { return path_; }
    size_t found() const { return likelihoods_.size() + texts_.size(); }
    size_t added() const { return added_; }
    // Deletes the file: the results are written.
    void finish();

private:
    void read(const std::string& key);
    void append(const std::string& line);
    void append(nlohmann::json answer, const ExitCounts* exits);

    std::string path_;
    std::map<Place, Likelihood> likelihoods_;
    std::map<Place, std::string> texts_;
    std::map<Place, ExitCounts> exits_;
    std::FILE* file_ = nullptr;
    size_t added_ = 0;
};

}  // namespace refold
