// Keeps the answers of an unfinished run on disk, so that an interrupted run resumes where it stopped.
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
    // Reads the answers that an earlier run with the same key left at `path`; replaces a file with another
    // key. Throws Error(io) when the file cannot be written.
    WorkFile(std::string path, const std::string& key);
    // Deletes a file without answers.
    ~WorkFile();
    WorkFile(const WorkFile&) = delete;
    WorkFile& operator=(const WorkFile&) = delete;

    using RequestId = std::pair<size_t, size_t>;  // index of the task in the run, of the request in the task
    const Likelihood* likelihood(RequestId request) const;
    const std::string* text(RequestId request) const;
    // Exits of the answer's tokens; null if it was stored without them.
    const ExitCounts* exits(RequestId request) const;
    // Written at once. Throws Error(io), e.g. when the disk is full.
    void add(RequestId request, const Likelihood& likelihood, const ExitCounts* exits = nullptr);
    void add(RequestId request, const std::string& text, const ExitCounts* exits = nullptr);

    const std::string& path() const { return path_; }
    size_t found() const { return likelihoods_.size() + texts_.size(); }
    size_t added() const { return added_; }
    // Deletes the file; call it when the results are written.
    void finish();

private:
    void read(const std::string& key);
    void append(const std::string& line);
    void append(nlohmann::json answer, const ExitCounts* exits);

    std::string path_;
    std::map<RequestId, Likelihood> likelihoods_;
    std::map<RequestId, std::string> texts_;
    std::map<RequestId, ExitCounts> exits_;
    std::FILE* file_ = nullptr;
    size_t added_ = 0;
};

}  // namespace refold
