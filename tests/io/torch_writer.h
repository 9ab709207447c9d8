// A state dict as PyTorch writes it: a stored zip archive with a pickle.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace refold {

class TorchWriter {
public:
    // The bytes of a file with `entries`.
    static std::string zip(const std::vector<std::pair<std::string, std::string>>& entries) {
        std::string out, directory;
        for (const auto& [name, data] : entries) {
            const auto size = static_cast<uint32_t>(data.size());
            const std::string sizes = number(size) + number(size);
            const std::string names = number<uint16_t>(name.size()) + number<uint16_t>(0);
            const std::string version(2, '\0'), flags_method_time_sum(12, '\0');
            directory += "PK\1\2" + version + version + flags_method_time_sum + sizes + names +
                         std::string(10, '\0') + number(static_cast<uint32_t>(out.size())) + name;
            out += "PK\3\4" + version + flags_method_time_sum + sizes + names + name + data;
        }
        const std::string count = number<uint16_t>(entries.size());
        const auto offset = static_cast<uint32_t>(out.size());
        return out + directory + "PK\5\6" + std::string(4, '\0') + count + count +
               number(static_cast<uint32_t>(directory.size())) + number(offset) + number<uint16_t>(0);
    }

    static std::string file(const std::map<std::string, SafetensorsView>& tensors) {
        std::vector<std::pair<std::string, std::string>> entries{{"archive/data.pkl", ""}};
        std::string pickle = "\x80\x02}(";
        for (const auto& [name, view] : tensors) {
            const std::string storage = std::to_string(entries.size() - 1);
            entries.emplace_back(
                "archive/data/" + storage,
                std::string(reinterpret_cast<const char*>(view.data.data()), view.data.size()));
            pickle += text(name) + tensor(storage, view);
        }
        entries.front().second = pickle + "u.";
        return zip(entries);
    }

    static std::string text(const std::string& value) {
        return "X" + number(static_cast<uint32_t>(value.size())) + value;
    }

private:
    template <class Number>
    static std::string number(size_t value) {
        return number(static_cast<Number>(value));
    }
    template <class Number>
    static std::string number(Number value) {
        return {reinterpret_cast<const char*>(&value), sizeof(value)};
    }
    static std::string integer(int64_t value) { return "J" + number(static_cast<int32_t>(value)); }

    static std::string tensor(const std::string& storage, const SafetensorsView& view) {
        const std::map<std::string, std::string> types{
            {"F32", "Float"}, {"F16", "Half"},  {"BF16", "BFloat16"}, {"F64", "Double"}, {"I64", "Long"},
            {"I32", "Int"},   {"I16", "Short"}, {"I8", "Char"},       {"U8", "Byte"},    {"BOOL", "Bool"}};
        std::string shape, strides;
        int64_t count = 1;
        for (size_t i = view.shape.size(); i-- > 0; count *= view.shape[i]) {
            shape.insert(0, integer(view.shape[i]));
            strides.insert(0, integer(count));
        }
        return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\n" + types.at(view.dtype) +
               "Storage\n" + text(storage) + text("cpu") + integer(count) + "tQK" + std::string(1, '\0') +
               "(" + shape + "t(" + strides + "t\x89" + "ccollections\nOrderedDict\n)RtR";
    }
};

}  // namespace refold
