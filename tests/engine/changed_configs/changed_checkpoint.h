// A checkpoint of tests/fixtures/hf with one change, as tests/tools/config_changes.py describes it.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/temp_folder.h"
#include "core/text.h"
#include "io/safetensors.h"

namespace refold {

class ChangedCheckpoint {
public:
    using Json = nlohmann::ordered_json;

    // `layers` of the fixture.
    ChangedCheckpoint(const std::string& fixture, size_t layers) : layers_(layers) {
        const std::filesystem::path folder = std::filesystem::path(REFOLD_FIXTURES) / "hf" / fixture;
        config_ = Json::parse(read_text_file(folder / "config.json"));
        for (const auto& entry : std::filesystem::directory_iterator(folder)) {
            const std::string name = entry.path().filename();
            if (!name.starts_with("model") || entry.path().extension() != ".safetensors") continue;
            files_.push_back(read_safetensors(entry.path()));
            for (const auto& [tensor, view] : files_.back().tensors) tensors_.emplace(tensor, view);
        }
        whole_ = scratch_ / "model.safetensors";
        write(whole_, tensors_);
    }

    // The folder of the checkpoint with the change, valid until the next call.
    std::string with(const Json& change) {
        folder_ = std::make_unique<TempFolder>();
        write_all(*folder_ / "config.json", changed_config(change).dump());
        const std::string weights = *folder_ / "model.safetensors";
        bool same = true;
        for (const char* part : {"add", "lose", "copy", "rename"}) same = same && !change.contains(part);
        if (same) {
            std::filesystem::create_symlink(std::filesystem::absolute(whole_), weights);
        } else {
            write(weights, changed_tensors(change));
        }
        if (change.contains("leftover")) write_leftover();
        return *folder_ / "";
    }

    const Json& config() const { return config_; }

private:
    using Tensors = std::map<std::string, SafetensorsView>;

    Json changed_config(const Json& change) const {
        if (change.contains("wrap")) {
            Json out = change["wrap"];
            out["text_config"] = config_;
            return out;
        }
        Json out = config_;
        for (const auto& pointer : change.value("drop", Json::array())) {
            const Json::json_pointer at(pointer.get<std::string>());
            out.at(at.parent_pointer()).erase(at.back());
        }
        const Json set = change.value("set", Json::object());
        for (const auto& [pointer, value] : set.items()) out[Json::json_pointer(pointer)] = value;
        return out;
    }

    // "#" stands for every layer.
    std::vector<std::string> names(const std::string& pattern) const {
        const size_t at = pattern.find('#');
        if (at == std::string::npos) return {pattern};
        std::vector<std::string> out;
        for (size_t layer = 0; layer < layers_; ++layer)
            out.push_back(pattern.substr(0, at) + std::to_string(layer) + pattern.substr(at + 1));
        return out;
    }

    // Whether a name is the pattern with numbers for every "#".
    static bool fits(const std::string& name, const std::string& pattern) {
        size_t n = 0;
        for (const char c : pattern) {
            if (c != '#') {
                if (n >= name.size() || name[n++] != c) return false;
                continue;
            }
            const size_t first = n;
            while (n < name.size() && std::isdigit(static_cast<unsigned char>(name[n])) != 0) ++n;
            if (n == first) return false;
        }
        return n == name.size();
    }

    Tensors changed_tensors(const Json& change) {
        made_.clear();
        Tensors out = tensors_;
        for (const auto& entry : change.value("add", Json::array())) {
            for (const std::string& name : names(entry[0]))
                out[name] = entry[1].is_string() ? tensors_.at(entry[1]) : filled(name, entry[1]);
        }
        for (const auto& pattern : change.value("lose", Json::array()))
            std::erase_if(out, [&](const auto& t) { return fits(t.first, pattern.get<std::string>()); });
        for (const char* part : {"copy", "rename"}) {
            if (!change.contains(part)) continue;
            const std::string from = change[part][0], to = change[part][1];
            Tensors renamed;
            for (const auto& [name, view] : out) {
                const bool begins = name.starts_with(from);
                if (begins) renamed[to + name.substr(from.size())] = view;
                if (!begins || std::string(part) == "copy") renamed[name] = view;
            }
            out = std::move(renamed);
        }
        return out;
    }

    // The numbers of make_changed_config_fixtures.py's function of this name.
    SafetensorsView filled(const std::string& name, const std::vector<int64_t>& shape) {
        size_t count = 1;
        uint64_t sum = 0;
        for (const int64_t n : shape) count *= static_cast<size_t>(n);
        for (const char c : name) sum += static_cast<unsigned char>(c);
        made_.emplace_back(count * sizeof(float));
        for (size_t i = 0; i < count; ++i) {
            const auto mixed = static_cast<uint32_t>((i + sum) * 2654435761U);
            const float value = static_cast<float>(mixed >> 8) / 16777216.0F * 0.4F - 0.2F;
            memcpy(made_.back().data() + i * sizeof(float), &value, sizeof value);
        }
        return {"F32", shape, made_.back()};
    }

    // An index, and a shard with other numbers under the same names.
    void write_leftover() {
        made_.clear();
        Tensors others;
        Json map = Json::object();
        const std::string shard = "model-00001-of-00001.safetensors";
        for (const auto& [name, view] : tensors_) {
            others[name] = filled(name, view.shape);
            map[name] = shard;
        }
        write(*folder_ / shard, others);
        write_all(*folder_ / "model.safetensors.index.json",
                  Json({{"metadata", Json::object()}, {"weight_map", map}}).dump());
    }

    static void write(const std::string& path, const Tensors& tensors) {
        std::vector<SafetensorsOutput> out;
        for (const auto& [name, view] : tensors) {
            const std::span<const std::byte> data = view.data;
            out.push_back({name, view.dtype, view.shape, [data](const auto& sink) { sink(data); }});
        }
        write_safetensors(path, true, out, {{"format", "pt"}}, [](uint64_t, const std::string&) {});
    }

    size_t layers_;
    Json config_;
    std::vector<SafetensorsFile> files_;
    Tensors tensors_;
    TempFolder scratch_;
    std::string whole_;  // all tensors in one file
    std::vector<std::vector<std::byte>> made_;
    std::unique_ptr<TempFolder> folder_;
};

}  // namespace refold
