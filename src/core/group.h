// The processes that work on one thing together, as torchrun and others start them. Everything that is split
// over them is put together again in every process; only the first one prints and writes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace refold {

class Group {
public:
    virtual ~Group() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    // All processes must call these in the same order; they throw Error(io) when a process is lost.
    // The bytes of every process, by rank, in all of them.
    virtual std::vector<std::string> gather(const std::string& own) = 0;
    // In place: the sum over all processes, the same bits in all of them.
    virtual void sum(std::span<double> values) = 0;

    bool first() const { return rank() == 0; }
    // Of units of work that are counted through: whether this process does it.
    bool owns(size_t unit) const { return unit % static_cast<size_t>(size()) == static_cast<size_t>(rank()); }
    template <typename T>
    std::vector<T> own(const std::vector<T>& units) const {
        std::vector<T> out;
        for (size_t i = 0; i < units.size(); ++i)
            if (owns(i)) out.push_back(units[i]);
        return out;
    }
};

// This program's; one process until another group is set (train/launch.h), and again with nullptr: before the
// program ends, as libraries that it needs would be gone after that.
Group& group();
void set_group(std::unique_ptr<Group> group);

}  // namespace refold
