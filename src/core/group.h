// A group of processes that share one job, as torchrun and others start them. Work that is split over them is
// collected again in every process; only the first process prints and writes files.
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
    // Collective calls: all processes must make them in the same order. They throw Error(io) when a process
    // is lost.
    // All-gather: returns the bytes of every process by rank.
    virtual std::vector<std::string> gather(const std::string& own) = 0;
    // All-reduce in place: the sum over all processes, bit for bit the same in each.
    virtual void sum(std::span<double> values) = 0;

    bool first() const { return rank() == 0; }
    // Whether this process does the unit of work with this number (round robin).
    bool owns(size_t unit) const { return unit % static_cast<size_t>(size()) == static_cast<size_t>(rank()); }
    template <typename T>
    std::vector<T> own(const std::vector<T>& units) const {
        std::vector<T> out;
        for (size_t i = 0; i < units.size(); ++i)
            if (owns(i)) out.push_back(units[i]);
        return out;
    }
};

// The group of this program: one process until another group is set (train/launch.h). Call set_group(nullptr)
// before the program ends, because the group needs libraries that static destructors may unload first.
Group& group();
void set_group(std::unique_ptr<Group> group);

}  // namespace refold
