#include "compress/methods/direct_share.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "core/error.h"
#include "core/interrupt.h"
#include "core/parallel.h"
#include "core/progress.h"
#include "core/text.h"

namespace refold {
namespace direct_share {
namespace {

using Refs = std::vector<HeadRef>;

int64_t units_per_position(const Model& model) { return model.config.n_head_kv; }

// Heads of a slot that belong to one unit.
int64_t heads_per_unit(Slot slot, const ModelConfig& config) {
    return slot == Slot::attn_q || slot == Slot::attn_o ? config.q_per_kv() : 1;
}

int64_t stored_heads(const Tensor& tensor, Slot slot, const ModelConfig& config) {
    return (heads_are_columns(slot) ? tensor.row_elements() : tensor.rows()) / config.head_dim;
}

// Every head of a slot, whether the expression is dense or already shared.
Refs refs_of(const Model& model, size_t position, Slot slot) {
    const Expression& expression = model.topology.at(position, slot);
    if (const auto* heads = std::get_if<Heads>(&expression)) return expand(*heads);
    const std::string& tensor = std::get<Dense>(expression).tensor;
    return expand(Heads{{{tensor, 0, stored_heads(model.tensor(tensor), slot, model.config)}}});
}

using ModelRefs = std::vector<std::map<Slot, Refs>>;  // per position

ModelRefs all_refs(const Model& model, const std::vector<Slot>& slots) {
    ModelRefs refs(model.topology.positions.size());
    for (size_t p = 0; p < refs.size(); ++p) {
        for (const Slot slot : slots) refs[p][slot] = refs_of(model, p, slot);
    }
    return refs;
}

// Which stored heads a unit consists of: units with equal keys are the same stored weights.
using UnitKey = std::vector<std::pair<std::string, int64_t>>;

UnitKey key_of(const Model& model, const ModelRefs& refs, Unit unit, const std::vector<Slot>& slots) {
    UnitKey key;
    for (const Slot slot : slots) {
        const int64_t n = heads_per_unit(slot, model.config);
        for (int64_t h = unit.index * n; h < (unit.index + 1) * n; ++h) {
            const HeadRef& ref = refs[unit.position].at(slot)[static_cast<size_t>(h)];
            key.emplace_back(ref.tensor, ref.head);
        }
    }
    return key;
}

// Units with weights of their own, in order: the first unit of every set of equal ones.
std::vector<Unit> stored_units(const Model& model, const std::vector<Slot>& shared) {
    const ModelRefs refs = all_refs(model, shared);
    std::vector<Unit> units;
    std::set<UnitKey> seen;
    for (size_t p = 0; p < refs.size(); ++p) {
        for (int64_t u = 0; u < units_per_position(model); ++u) {
            if (seen.insert(key_of(model, refs, {p, u}, shared)).second) units.push_back({p, u});
        }
    }
    return units;
}

// Packed rows [first, first + count) of every unit of one slot: views of mapped tensors, copies of the
// others.
class UnitRows {
public:
    UnitRows(const Model& model, Slot slot, const std::vector<Unit>& units, int64_t first, int64_t count)
        : head_dim_(model.config.head_dim) {
        // The places (unit x heads + head) that a tensor fills, and with which of its heads.
        std::map<std::string, std::vector<std::pair<size_t, HeadRef>>> by_tensor;
        const int64_t heads = heads_per_unit(slot, model.config);
        rows_.resize(units.size(), std::vector<Source>(static_cast<size_t>(heads)));
        for (size_t u = 0; u < units.size(); ++u) {
            const Refs refs = refs_of(model, units[u].position, slot);
            for (int64_t h = 0; h < heads; ++h) {
                const HeadRef& ref = refs[static_cast<size_t>(units[u].index * heads + h)];
                by_tensor[ref.tensor].emplace_back(u * static_cast<size_t>(heads) + static_cast<size_t>(h),
                                                   ref);
            }
        }
        for (const auto& [name, uses] : by_tensor) {
            const Tensor& tensor = model.tensor(name);
            const size_t stride = row_bytes(tensor.type, tensor.row_elements());
            const TensorBytes bytes(tensor);
            for (const auto& [place, ref] : uses) {
                const auto head = static_cast<int64_t>(place) % heads;
                // The part of this head's rows that lies in the range wanted of the unit.
                const int64_t begin = std::max(first, head * head_dim_),
                              end = std::min(first + count, (head + 1) * head_dim_);
                if (begin >= end) continue;
                const auto row = static_cast<size_t>(ref.head * head_dim_ + begin - head * head_dim_);
                auto view = bytes.bytes().subspan(row * stride, static_cast<size_t>(end - begin) * stride);
                if (tensor.produce) {
                    owned_.emplace_back(view.begin(), view.end());
                    view = owned_.back();
                }
                rows_[place / static_cast<size_t>(heads)][static_cast<size_t>(head)] = {tensor.type, stride,
                                                                                        begin, view};
            }
            check_interrupt();
        }
        source_ = model.source;
    }

    // Mapped pages are read once: they need not stay resident.
    ~UnitRows() {
        if (source_ == nullptr) return;
        for (const auto& unit : rows_) {
            for (const auto& rows : unit) source_->release(rows.view);
        }
    }
    UnitRows(const UnitRows&) = delete;
    UnitRows& operator=(const UnitRows&) = delete;

    void read(size_t unit, int64_t row, std::span<float> out) const {
        const Source& source = rows_[unit][static_cast<size_t>(row / head_dim_)];
        dequantise(
            source.type,
            source.view.subspan(static_cast<size_t>(row - source.first) * source.stride, source.stride), out);
    }

private:
    struct Source {
        DType type = DType::F32;
        size_t stride = 0;
        int64_t first = 0;  // row of the unit that `view` starts with
        std::span<const std::byte> view;
    };
    int64_t head_dim_;
    std::vector<std::vector<Source>> rows_;  // [unit][head of the unit]
    std::vector<std::vector<std::byte>> owned_;
    std::shared_ptr<const SourceFiles> source_;
};

// Bytes of a slot's tensors that are not mapped.
size_t produced_bytes(const Model& model, Slot slot) {
    std::set<std::string> names;
    for (const auto& slots : model.topology.positions) {
        for (const auto& name : tensors_of(slots.at(slot))) names.insert(name);
    }
    size_t bytes = 0;
    for (const auto& name : names) {
        if (model.tensor(name).produce) bytes += model.tensor(name).bytes();
    }
    return bytes;
}

// Dot products of all units, lower triangle, row major. Panels of rows that all units have in common go
// through dsyrk: float64, because neighbours in the ranking of a real model differ by 1e-5.
std::vector<double> gram_matrix(const Model& model, const std::vector<Unit>& units,
                                const std::vector<Slot>& on, const MatchMemory& memory) {
    const size_t n = units.size();
    const auto width = static_cast<size_t>(model.config.n_embd);
    const auto panel_rows =
        static_cast<int64_t>(std::max<size_t>(1, memory.panel / (n * width * sizeof(double))));
    std::vector<double> gram(n * n, 0.0);
    std::vector<double> panel;
    int64_t total = 0;
    for (const Slot slot : on) total += heads_per_unit(slot, model.config) * model.config.head_dim;
    Progress progress("matching " + format_count(n) + " heads", static_cast<uint64_t>(total), "rows");
    for (const Slot slot : on) {
        const int64_t rows = heads_per_unit(slot, model.config) * model.config.head_dim;
        const auto stripes =
            static_cast<int64_t>((produced_bytes(model, slot) + memory.produced - 1) / memory.produced);
        const int64_t stripe = stripes > 1 ? (rows + stripes - 1) / stripes : rows;
        for (int64_t begin = 0; begin < rows; begin += stripe) {
            const int64_t end = std::min(rows, begin + stripe);
            const UnitRows source(model, slot, units, begin, end - begin);
            for (int64_t row = begin; row < end; row += panel_rows) {
                const int64_t count = std::min(panel_rows, end - row);
                const size_t columns = static_cast<size_t>(count) * width;
                panel.resize(n * columns);
                parallel_for(static_cast<int64_t>(n), default_threads(), [&](int64_t unit) {
                    std::vector<float> values(width);
                    double* out = panel.data() + static_cast<size_t>(unit) * columns;
                    for (int64_t r = 0; r < count; ++r, out += width) {
                        source.read(static_cast<size_t>(unit), row + r, values);
                        std::copy(values.begin(), values.end(), out);
                    }
                });
                cblas_dsyrk(CblasRowMajor, CblasLower, CblasNoTrans, static_cast<int>(n),
                            static_cast<int>(columns), 1.0, panel.data(), static_cast<int>(columns), 1.0,
                            gram.data(), static_cast<int>(n));
                progress.advance(static_cast<uint64_t>(count));
            }
        }
    }
    progress.finish();
    return gram;
}

// Equal weights must give equal similarities whatever order a product was summed in: a grid of 2^-40 is far
// coarser than rounding in float64 and far finer than any difference that means something.
double snap(double cosine) { return std::ldexp(std::nearbyint(std::ldexp(cosine, 40)), -40); }

}  // namespace

std::vector<Match> best_matches(const Model& model, const std::vector<Slot>& on,
                                const std::vector<Slot>& shared, const MatchMemory& memory) {
    const std::vector<Unit> units = stored_units(model, shared);
    const std::vector<double> gram = gram_matrix(model, units, on, memory);
    const size_t n = units.size();
    for (size_t i = 0; i < n; ++i) {
        if (!std::isfinite(gram[i * n + i])) {
            fail(ErrorCode::input, "direct_share", "{}: weights of position {}, unit {} are not finite",
                 model.label, units[i].position, units[i].index);
        }
    }
    std::vector<Match> matches;
    for (size_t i = 0; i < n; ++i) {
        if (units[i].position == 0) continue;
        Match best{units[i], {}, -2.0};
        for (size_t j = 0; j < i && units[j].position < units[i].position; ++j) {
            const double norms = std::sqrt(gram[i * n + i]) * std::sqrt(gram[j * n + j]);
            const double cosine = norms > 0 ? snap(gram[i * n + j] / norms) : 0.0;
            if (cosine > best.cosine) {
                best.cosine = cosine;
                best.former = units[j];
            }
        }
        if (best.cosine > -2.0) matches.push_back(best);
    }
    return matches;
}

std::vector<Match> select(const std::vector<Match>& matches, size_t count) {
    std::vector<Match> chosen = matches;
    std::stable_sort(chosen.begin(), chosen.end(),
                     [](const Match& a, const Match& b) { return a.cosine > b.cosine; });
    chosen.resize(std::min(count, chosen.size()));
    std::sort(chosen.begin(), chosen.end(), [](const Match& a, const Match& b) { return a.later < b.later; });
    return chosen;
}

std::vector<Replacement> resolve(const std::vector<Match>& selected, Chain chain) {
    std::map<Unit, Unit> source;
    std::set<Unit> copied;
    for (const auto& match : selected) {
        Unit former = match.former;
        // In ascending order a former unit has already been resolved.
        if (const auto found = source.find(former); chain == Chain::root && found != source.end())
            former = found->second;
        source[match.later] = former;
        copied.insert(match.former);
    }
    std::vector<Replacement> out;
    for (const auto& [unit, former] : source) {
        if (chain == Chain::repo && copied.contains(unit)) continue;
        out.push_back({unit, former});
    }
    return out;
}

namespace {

// A stored tensor without some of its heads: streamed from the tensor it was cut from.
Tensor keep_heads(const Model& model, const Tensor& tensor, Slot slot, const std::vector<int64_t>& kept,
                  DType type) {
    const int64_t head_dim = model.config.head_dim;
    const bool columns = heads_are_columns(slot);
    const auto along = static_cast<int64_t>(kept.size()) * head_dim;
    Tensor out;
    out.type = type;
    out.shape = columns ? std::vector{along, tensor.rows()} : std::vector{tensor.row_elements(), along};
    // The producer keeps the mapped file alive: `model` may be gone when it runs.
    out.produce = [tensor, kept, head_dim, columns, along, type, file = model.source] {
        const TensorBytes source(tensor);
        const size_t stride = row_bytes(tensor.type, tensor.row_elements());
        std::vector<std::byte> packed;
        if (!columns) {
            const size_t part = static_cast<size_t>(head_dim) * stride;
            packed.reserve(kept.size() * part);
            for (const int64_t head : kept) {
                const auto rows = source.bytes().subspan(static_cast<size_t>(head) * part, part);
                packed.insert(packed.end(), rows.begin(), rows.end());
            }
            return packed;
        }
        if (type == tensor.type) {
            // Neighbouring heads are copied together, so that a block may span heads of one group.
            packed.reserve(row_bytes(type, along) * static_cast<size_t>(tensor.rows()));
            for (int64_t row = 0; row < tensor.rows(); ++row) {
                const auto line = source.bytes().subspan(static_cast<size_t>(row) * stride, stride);
                for (size_t i = 0, run = 0; i < kept.size(); i += run) {
                    for (run = 1;
                         i + run < kept.size() && kept[i + run] == kept[i] + static_cast<int64_t>(run);)
                        ++run;
                    const auto part = line.subspan(row_bytes(type, kept[i] * head_dim),
                                                   row_bytes(type, static_cast<int64_t>(run) * head_dim));
                    packed.insert(packed.end(), part.begin(), part.end());
                }
            }
            return packed;
        }
        std::vector<float> values(static_cast<size_t>(along * tensor.rows())),
            line(static_cast<size_t>(tensor.row_elements()));
        auto to = values.begin();
        for (int64_t row = 0; row < tensor.rows(); ++row) {
            dequantise(tensor.type, source.bytes().subspan(static_cast<size_t>(row) * stride, stride), line);
            for (const int64_t head : kept) to = std::copy_n(line.begin() + head * head_dim, head_dim, to);
        }
        return quantise(type, values, along);
    };
    return out;
}

// True when some run of columns on `tensor` does not start and end at a block.
bool cuts_blocks(const std::string& tensor, DType type, int64_t head_dim, Slot slot, const ModelRefs& refs) {
    const int64_t block = block_elements(type);
    for (const auto& position : refs) {
        for (const auto& run : collapse(position.at(slot)).runs) {
            if (run.tensor == tensor &&
                (run.first * head_dim % block != 0 || run.count * head_dim % block != 0))
                return true;
        }
    }
    return false;
}

// Tensors of `slot` after the replacement: heads that `refs` no longer uses are cut out, and `refs`
// renumbered.
void rewrite_tensors(Model& model, Slot slot, const std::set<std::string>& names, ModelRefs& refs,
                     std::vector<Requantised>& requantised) {
    const int64_t head_dim = model.config.head_dim;
    std::map<std::string, std::set<int64_t>> used;
    for (const auto& position : refs) {
        for (const auto& ref : position.at(slot)) used[ref.tensor].insert(ref.head);
    }
    std::map<std::string, std::map<int64_t, int64_t>> renumbered;
    for (const auto& name : names) {
        const Tensor tensor = model.tensor(name);
        const std::vector<int64_t> kept(used[name].begin(), used[name].end());
        if (kept.empty()) {
            model.tensors.erase(name);
            continue;
        }
        DType type = tensor.type;
        if (heads_are_columns(slot) && cuts_blocks(name, type, head_dim, slot, refs)) {
            type = head_dim % block_elements(DType::Q8_0) == 0 ? DType::Q8_0 : DType::F16;
        }
        if (type == tensor.type &&
            static_cast<int64_t>(kept.size()) == stored_heads(tensor, slot, model.config))
            continue;
        for (size_t i = 0; i < kept.size(); ++i) renumbered[name][kept[i]] = static_cast<int64_t>(i);
        Tensor cut = keep_heads(model, tensor, slot, kept, type);
        if (type != tensor.type) {
            const auto stored = static_cast<size_t>(stored_heads(tensor, slot, model.config));
            requantised.push_back(
                {name, tensor.type, type, tensor.bytes() / stored * kept.size(), cut.bytes()});
        }
        model.tensors[name] = std::move(cut);
    }
    for (auto& position : refs) {
        for (auto& ref : position.at(slot)) {
            if (const auto found = renumbered.find(ref.tensor); found != renumbered.end())
                ref.head = found->second.at(ref.head);
        }
    }
}

// Dense where the heads are a whole tensor in order, so that what is not shared looks like what never was.
Expression expression_of(const Model& model, Slot slot, const Refs& refs) {
    Heads heads = collapse(refs);
    const HeadRun& first = heads.runs.front();
    const bool whole = heads.runs.size() == 1 && first.first == 0 &&
                       first.count == stored_heads(model.tensor(first.tensor), slot, model.config);
    if (whole) return Dense{first.tensor};
    return heads;
}

// Biases are stored per position: a replaced unit gets a copy of its source's.
void copy_biases(Model& model, const Model& original, Slot slot, Slot bias,
                 const std::map<Unit, Unit>& source) {
    const int64_t length = heads_per_unit(slot, model.config) * model.config.head_dim;
    std::map<size_t, std::vector<float>> changed;
    for (const auto& [unit, from] : source) {
        if (!original.topology.has(unit.position, bias) || !original.topology.has(from.position, bias))
            continue;
        auto& values = changed[unit.position];
        if (values.empty()) values = materialise(original, original.topology.at(unit.position, bias), bias);
        const std::vector<float> theirs =
            materialise(original, original.topology.at(from.position, bias), bias);
        std::copy_n(theirs.begin() + from.index * length, length, values.begin() + unit.index * length);
    }
    for (const auto& [p, values] : changed) {
        const std::string name = tensor_name(*model.family, bias, p);
        const auto bytes = std::as_bytes(std::span(values));
        Tensor tensor{DType::F32, {static_cast<int64_t>(values.size())}, {}, {}};
        tensor.produce = [packed = std::vector<std::byte>(bytes.begin(), bytes.end())] { return packed; };
        model.tensors[name] = std::move(tensor);
        model.topology.positions[p][bias] = Dense{name};
    }
}

}  // namespace

Model share(const Model& model, const std::vector<Replacement>& replacements, const std::vector<Slot>& slots,
            std::vector<Requantised>& requantised) {
    Model out = model;
    if (replacements.empty()) return out;
    const ModelRefs original = all_refs(model, slots);
    std::map<UnitKey, Unit> by_key;
    for (const auto& [unit, from] : replacements) by_key[key_of(model, original, unit, slots)] = from;
    // A unit that already had the replaced unit's weights follows it.
    std::map<Unit, Unit> source;
    for (size_t p = 0; p < original.size(); ++p) {
        for (int64_t u = 0; u < units_per_position(model); ++u) {
            const auto found = by_key.find(key_of(model, original, {p, u}, slots));
            if (found != by_key.end()) source[{p, u}] = found->second;
        }
    }
    ModelRefs refs = original;
    for (const auto& [unit, from] : source) {
        for (const Slot slot : slots) {
            const int64_t n = heads_per_unit(slot, model.config);
            std::copy_n(original[from.position].at(slot).begin() + from.index * n, n,
                        refs[unit.position].at(slot).begin() + unit.index * n);
        }
    }
    for (const Slot slot : slots) {
        std::set<std::string> names;
        for (const auto& position : original) {
            for (const auto& ref : position.at(slot)) names.insert(ref.tensor);
        }
        rewrite_tensors(out, slot, names, refs, requantised);
        for (size_t p = 0; p < refs.size(); ++p)
            out.topology.positions[p][slot] = expression_of(out, slot, refs[p].at(slot));
    }
    copy_biases(out, model, Slot::attn_q, Slot::attn_q_bias, source);
    copy_biases(out, model, Slot::attn_k, Slot::attn_k_bias, source);
    copy_biases(out, model, Slot::attn_v, Slot::attn_v_bias, source);
    return out;
}

namespace {

using nlohmann::json;

std::vector<Slot> slots_of(const std::string& letters) {
    std::vector<Slot> slots;
    for (const char letter : letters) {
        slots.push_back(letter == 'q'   ? Slot::attn_q
                        : letter == 'k' ? Slot::attn_k
                        : letter == 'v' ? Slot::attn_v
                                        : Slot::attn_o);
    }
    return slots;
}

Chain chain_of(const std::string& name) {
    return name == "root" ? Chain::root : name == "one-hop" ? Chain::one_hop : Chain::repo;
}

std::string text(Unit unit) { return fmt::format("{}.{}", unit.position, unit.index); }
json to_json(Unit unit) { return json::array({unit.position, unit.index}); }

// Linear interpolation between ranks, as numpy's percentile.
double quantile(const std::vector<double>& ascending, double part) {
    const double place = part * static_cast<double>(ascending.size() - 1);
    const auto low = static_cast<size_t>(place);
    const size_t high = std::min(low + 1, ascending.size() - 1);
    return ascending[low] + (place - static_cast<double>(low)) * (ascending[high] - ascending[low]);
}

void report_similarities(const std::vector<Match>& matches, const std::vector<Match>& selected,
                         StepReport& report, json& details) {
    std::vector<double> values;
    for (const auto& match : matches) values.push_back(match.cosine);
    std::sort(values.begin(), values.end());
    json& similarity =
        details["similarity"] = {{"minimum", values.front()},       {"quartile_1", quantile(values, 0.25)},
                                 {"median", quantile(values, 0.5)}, {"quartile_3", quantile(values, 0.75)},
                                 {"maximum", values.back()},        {"cut_off", nullptr}};
    report.lines.push_back(fmt::format(
        "best match of {} heads: cosine min {:.5f}, quartiles {:.5f} / {:.5f} / {:.5f}, max {:.5f}",
        values.size(), values.front(), quantile(values, 0.25), quantile(values, 0.5), quantile(values, 0.75),
        values.back()));
    if (!selected.empty()) {
        const auto last =
            std::min_element(selected.begin(), selected.end(),
                             [](const Match& a, const Match& b) { return a.cosine < b.cosine; });
        similarity["cut_off"] = last->cosine;
        report.lines.push_back(fmt::format("smallest cosine chosen: {:.5f}", last->cosine));
    }
    report.lines.emplace_back(
        "Heads of different layers are nearly orthogonal in plain cosine (at most about 0.06 in Llama-2-7B): "
        "the method "
        "takes the largest, however small; a threshold such as 0.9 would select nothing.");
}

void report_pairs(const std::vector<Match>& selected, const std::vector<Replacement>& replacements,
                  StepReport& report, json& details) {
    std::map<Unit, Unit> source;
    for (const auto& r : replacements) source[r.unit] = r.source;
    std::set<Unit> chosen, copied;
    for (const auto& match : selected) chosen.insert(match.later);
    for (const auto& r : replacements) copied.insert(r.source);
    // A replaced unit whose original weights another one copies still takes room.
    size_t removed = 0;
    for (const auto& r : replacements) removed += copied.contains(r.unit) ? 0 : 1;
    details["selected"] = selected.size();
    details["replaced"] = replacements.size();
    details["removed"] = removed;
    report.lines.push_back(fmt::format("{} selected, {} replaced, {} no longer stored", selected.size(),
                                       replacements.size(), removed));

    std::vector<Match> ranked = selected;
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const Match& a, const Match& b) { return a.cosine > b.cosine; });
    json& pairs = details["pairs"] = json::array();
    report.lines.emplace_back("later <- former (layer.head, from 0): cosine");
    for (const auto& match : ranked) {
        const auto found = source.find(match.later);
        const bool shared_source = chosen.contains(match.former);
        std::string note;
        if (found == source.end()) {
            note = "  (keeps its own weights: another head copies it)";
        } else if (found->second != match.former) {
            note = fmt::format("  (itself shared: takes {})", text(found->second));
        } else if (source.contains(match.former)) {
            note = "  (itself shared: takes its original weights)";
        }
        report.lines.push_back(
            fmt::format("  {} <- {}: {:.5f}{}", text(match.later), text(match.former), match.cosine, note));
        pairs.push_back({{"later", to_json(match.later)},
                         {"former", to_json(match.former)},
                         {"cosine", match.cosine},
                         {"former_is_shared", shared_source},
                         {"takes", found == source.end() ? json(nullptr) : to_json(found->second)}});
    }
}

void report_requantised(const std::vector<Requantised>& requantised, StepReport& report, json& details) {
    json& list = details["requantised"] = json::array();
    size_t before = 0, after = 0;
    for (const auto& r : requantised) {
        list.push_back({{"tensor", r.tensor},
                        {"from", name(r.from)},
                        {"to", name(r.to)},
                        {"bytes_before", r.bytes_before},
                        {"bytes_after", r.bytes_after}});
        report.lines.push_back(fmt::format(
            "{}: requantised {} -> {}, because the columns of its heads are not whole blocks of {}", r.tensor,
            name(r.from), name(r.to), block_elements(r.from)));
        before += r.bytes_before;
        after += r.bytes_after;
    }
    if (!requantised.empty()) {
        report.lines.push_back(
            fmt::format("requantised tensors: {} -> {}; share=qkv leaves the output projection as it is",
                        format_bytes(before), format_bytes(after)));
    }
}

Model apply(const Model& model, Step& step) {
    const Options& options = step.options;
    StepReport& report = step.report;
    const std::vector<Slot> shared = slots_of(options.text("share"));
    const size_t layers = model.topology.positions.size();
    const auto per_layer = static_cast<size_t>(units_per_position(model));
    // The guard keeps 0.3 * 90 = 26.999... from losing a head.
    const auto count = static_cast<size_t>(
        std::floor(options.number("ratio") * static_cast<double>(layers * per_layer) + 1e-9));

    const std::vector<Match> matches = best_matches(model, slots_of(options.text("match")), shared);
    const std::vector<Match> selected = select(matches, count);
    const std::vector<Replacement> replacements = resolve(selected, chain_of(options.text("chain")));
    std::vector<Requantised> requantised;
    Model out = share(model, replacements, shared, requantised);

    json details = {{"unit", model.config.q_per_kv() > 1 ? "kv_group" : "head"},
                    {"units", layers * per_layer},
                    {"candidates", matches.size()}};
    if (model.config.q_per_kv() > 1) {
        report.lines.push_back(
            fmt::format("grouped-query attention: what is shared is a key/value head with its {} query "
                        "heads; \"head\" below "
                        "means such a group ({} per layer)",
                        model.config.q_per_kv(), per_layer));
    }
    if (selected.size() < count) {
        report.lines.push_back(
            fmt::format("{} heads asked for, {} can be replaced (layer 0 and what is already shared cannot)",
                        count, selected.size()));
    }
    if (!matches.empty()) report_similarities(matches, selected, report, details);
    report_pairs(selected, replacements, report, details);
    report_requantised(requantised, report, details);
    report.details = details.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
Heads of later layers take over the weights of the most similar head of an earlier layer; no training.

**Algorithm 1, matching.** Every head of layers 1 to L-1 (counted from 0) is compared with all heads of all earlier
layers by the cosine of its query and key weights, concatenated and flattened into one vector (`match`). Its best match is
the largest cosine; of equal ones the first in order. Heads of the same layer are never compared, and layer 0 is never
replaced. No calibration text is needed.

**Algorithm 2, sharing.** The `ratio` x (all heads of all layers) heads with the largest cosines take the weights of their
match: Wq, Wk, Wv and, with `share=qkvo`, the head's columns of Wo. The earlier head is the one that is kept. Shared heads
exist once in the file and once in memory.

**Grouped-query attention.** The paper has one key and one value head per query head. Where several query heads share one,
the unit of sharing is the whole KV group: its query heads, in their order, its key head and its value head (and their
columns of Wo). "Head" means that group then, in `ratio` as well.

**Wo.** The paper's text speaks of Wq, Wk and Wv only (`share=qkv`), but its parameter counts (Table 3: 6.74 B to 6.09 B
at 30 %) and the authors' program include Wo (`share=qkvo`, the default).

**Chains.** When the head to be copied is itself replaced:
- `root`: the copy follows to the head that is really stored. Algorithm 2 in ascending order does the same, and only so
  does the ratio hold exactly.
- `one-hop`: the copy gets the matched head's original weights, which stay stored for it; less is saved.
- `repo`: as the authors' published program: a replaced head that another one copies takes its own weights back, so
  fewer heads change than were selected.

**What similarity to expect.** Heads of different layers are nearly orthogonal: cosines stay below about 0.06 in
Llama-2-7B. The method takes the largest, however small, so expect a real loss, which grows quickly with the ratio;
measure it with `refold eval ppl` before and after.

**Quantised models.** Rows are copied without requantising. Columns of Wo can be cut only between quantisation blocks;
tensors where that is impossible are requantised (Q8_0, or F16), and the report names them.

**Stacking.** A head that an earlier step already shares counts as the head it takes its weights from: it is not replaced
again, and follows when that one is.

Biases of a replaced head are copied from its source (they are too small to share).
)";

}  // namespace
}  // namespace direct_share

const Method kDirectShare = {
    "direct_share",
    "share whole attention heads across layers, by similarity of their weights",
    "Head-wise Shareable Attention for Large Language Models, section 4, Algorithms 1 and 2",
    direct_share::kDocumentation + 1,
    {
        {"ratio", OptionSpec::Kind::number, "0.3", "part of all heads (KV groups under GQA) to be replaced",
         0.0, 1.0},
        {.name = "match",
         .kind = OptionSpec::Kind::choice,
         .fallback = "qk",
         .help = "weights whose cosine decides",
         .choices = {"qk", "q", "k", "v", "qkv"}},
        {.name = "share",
         .kind = OptionSpec::Kind::choice,
         .fallback = "qkvo",
         .help = "weights that are shared; qkv leaves the output projection alone",
         .choices = {"qkvo", "qkv"}},
        {.name = "chain",
         .kind = OptionSpec::Kind::choice,
         .fallback = "root",
         .help = "what is copied from a head that is itself replaced",
         .choices = {"root", "one-hop", "repo"}},
    },
    direct_share::apply,
};

}  // namespace refold
