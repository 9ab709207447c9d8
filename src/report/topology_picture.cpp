#include "report/topology_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include "model/ownership.h"
#include "report/color.h"
#include "report/markup.h"

namespace refold {
namespace {

constexpr auto kMatrixSlots = slots_where([](const SlotProperties& s) {
    return s.kind == SlotKind::matrix && s.scope == SlotScope::layer && s.module != SlotModule::exit;
});

SlotFactors factors_of(const Model& model, const Expression& expression) {
    if (const auto* e = std::get_if<LowRank>(&expression))
        return {true, fmt::format("low rank {}", model.tensor(e->u).row_elements())};
    if (const auto* e = std::get_if<Tucker>(&expression)) {
        const auto& shape = model.tensor(e->core).shape;
        return {true, fmt::format("Tucker {} x {} x {}", shape[0], shape[1], shape[2])};
    }
    const auto* plus = std::get_if<Plus>(&expression);
    if (plus == nullptr) return {};
    SlotFactors base = factors_of(model, base_of(expression));
    const std::string lora = fmt::format("LoRA {}", model.tensor(plus->term.u).row_elements());
    return {base.instead, base.text.empty() ? lora : base.text + " + " + lora};
}

// A cell for each head, or for the whole slot: whose weights it uses.
TopologyCells cells_of(const Model& model, const Ownership& owners, Slot slot, const Expression& expression,
                       size_t layer) {
    const std::vector<HeadRef> heads = stored_heads_of(model.config, slot, expression, layer);
    if (heads.empty()) return {{owners.layer_of(tensors_of(base_of(expression)).front()), -1, 0}};
    TopologyCells cells;
    for (const HeadRef& ref : heads)
        cells.push_back({owners.layer_of(ref.tensor), owners.head_of(ref.tensor, ref.head).value_or(-1), 0});
    return cells;
}

}  // namespace

bool TopologyMap::borrowed(size_t layer, size_t slot, size_t cell) const {
    const TopologyCells& cells = rows[layer][slot];
    const TopologyCell& c = cells[cell];
    const bool has_heads = cells.size() > 1 || c.head >= 0;
    if (c.layer != layer) return true;
    return has_heads && c.head != static_cast<int64_t>(cell);
}

std::vector<double> borrowed_parts(const TopologyMap& map, bool (*wanted)(Slot)) {
    std::vector<double> out;
    for (size_t p = 0; p < map.rows.size(); ++p) {
        size_t cells = 0, borrowed = 0;
        for (size_t s = 0; s < map.slots.size(); ++s) {
            if (!wanted(map.slots[s])) continue;
            for (size_t i = 0; i < map.rows[p][s].size(); ++i, ++cells)
                borrowed += map.borrowed(p, s, i) ? 1 : 0;
        }
        out.push_back(cells == 0 ? std::nan("") : static_cast<double>(borrowed) / static_cast<double>(cells));
    }
    return out;
}

bool TopologyMap::replaced(size_t layer, size_t slot) const {
    Topology topology;
    if (layer < sources.size()) topology.sources[layer] = sources[layer];
    return topology.is_replaced(layer, slots[slot]);
}

TopologyMap topology_map(const Model& model) {
    const auto& layers = model.topology.layers;
    TopologyMap map;
    for (const Slot slot : kMatrixSlots) {
        const auto has = [&](const Slots& slots) { return slots.contains(slot); };
        if (std::any_of(layers.begin(), layers.end(), has)) map.slots.push_back(slot);
    }
    map.loops = model.topology.loops;
    for (size_t p = 0; p < layers.size(); ++p) map.sources.push_back(model.topology.source(p));
    map.factors.assign(layers.size(), std::vector<SlotFactors>(map.slots.size()));
    map.rows.assign(layers.size(), std::vector<TopologyCells>(map.slots.size()));
    const Ownership owners(model);
    for (size_t l = 0; l < layers.size(); ++l) {
        for (size_t s = 0; s < map.slots.size(); ++s) {
            const auto found = layers[l].find(map.slots[s]);
            if (found == layers[l].end()) continue;
            map.rows[l][s] = cells_of(model, owners, map.slots[s], found->second, l);
            map.factors[l][s] = factors_of(model, found->second);
        }
    }
    count_borrowers(map);
    return map;
}

void count_borrowers(TopologyMap& map) {
    for (size_t p = 0; p < map.rows.size(); ++p) {
        for (size_t s = 0; s < map.slots.size(); ++s) {
            for (size_t c = 0; c < map.rows[p][s].size(); ++c) {
                if (!map.borrowed(p, s, c)) continue;
                const TopologyCell& cell = map.rows[p][s][c];
                TopologyCells& owner = map.rows[cell.layer][s];
                const size_t at = cell.head < 0 ? 0 : static_cast<size_t>(cell.head);
                const bool used_there = cell.head >= 0 || owner.size() == 1;
                if (used_there && at < owner.size()) ++owner[at].borrowers;
            }
        }
    }
}

std::string topology_summary(const TopologyMap& map) {
    // Groups slots with the same figures.
    std::map<std::string, std::vector<std::string>> slots_by_figures;
    std::vector<std::string> order;
    const auto tell = [&](Slot slot, const std::string& figures) {
        if (!slots_by_figures.contains(figures)) order.push_back(figures);
        slots_by_figures[figures].emplace_back(slot_name(slot));
    };
    for (size_t s = 0; s < map.slots.size(); ++s) {
        size_t borrowed = 0, all = 0;
        for (size_t p = 0; p < map.rows.size(); ++p) {
            for (size_t c = 0; c < map.rows[p][s].size(); ++c, ++all)
                borrowed += map.borrowed(p, s, c) ? 1 : 0;
        }
        if (borrowed == 0) continue;
        tell(map.slots[s], fmt::format("{} of {} {} borrowed ({:.1f} %)", borrowed, all,
                                       all > map.rows.size() ? "heads" : "matrices",
                                       100.0 * static_cast<double>(borrowed) / static_cast<double>(all)));
    }
    for (size_t s = 0; s < map.slots.size(); ++s) {
        size_t all = 0, instead = 0, beside = 0;
        for (size_t p = 0; p < map.factors.size(); ++p) {
            const SlotFactors& factors = map.factors[p][s];
            all += map.rows[p][s].empty() ? 0 : 1;
            instead += factors.instead ? 1 : 0;
            beside += factors.text.find("LoRA") != std::string::npos ? 1 : 0;
        }
        if (instead > 0) tell(map.slots[s], fmt::format("{} of {} in factors", instead, all));
        if (beside > 0) tell(map.slots[s], fmt::format("{} of {} with LoRA", beside, all));
    }
    std::string out = fmt::format("{} layers", map.rows.size());
    if (map.loops > 1) out += fmt::format(" in {} loops", map.loops);
    const auto count = [&](auto field) {
        return std::count_if(map.sources.begin(), map.sources.end(),
                             [&](const AttentionSource& source) { return (source.*field).has_value(); });
    };
    if (const auto reusing = count(&AttentionSource::probabilities); reusing > 0)
        out += fmt::format("; {} with attention probabilities of another", reusing);
    if (const auto reading = count(&AttentionSource::kv); reading > 0)
        out += fmt::format("; {} with keys and values of another", reading);
    if (order.empty()) return out.find(';') == std::string::npos ? out + ", no sharing" : out;
    for (const auto& figures : order)
        out += fmt::format("; {}: {}{}", fmt::join(slots_by_figures[figures], ", "),
                           slots_by_figures[figures].size() > 1 ? "each " : "", figures);
    return out;
}

namespace {

const char* kOwnStyle = "fill:var(--own,#d9d6cf)";
const char* kDotStyle = "fill:var(--ink,#1d1c1a)";

struct Group {
    std::string name;           // heading above the columns
    std::vector<size_t> slots;  // indices into TopologyMap::slots
    std::vector<size_t> first;  // first column of every slot
    size_t cells = 0;
    double x = 0;
};

const char* heading(Slot slot) {
    constexpr std::array kProjections = {"Q", "K", "V", "O"};
    if (const auto projection = properties(slot).projection)
        return kProjections[static_cast<size_t>(*projection)];
    return is_compensation(slot) ? "Wc" : "FFN";
}

// Number of columns per slot.
std::vector<size_t> widths_of(const TopologyMap& map) {
    std::vector<size_t> widths(map.slots.size());
    for (size_t s = 0; s < map.slots.size(); ++s) {
        for (const auto& row : map.rows) widths[s] = std::max(widths[s], row[s].size());
    }
    return widths;
}

// Groups slots under a common heading.
std::vector<Group> groups_of(const TopologyMap& map, const std::vector<size_t>& widths) {
    std::vector<Group> groups;
    for (size_t s = 0; s < map.slots.size(); ++s) {
        const size_t width = widths[s];
        const std::string name = heading(map.slots[s]);
        if (groups.empty() || groups.back().name != name) groups.push_back({name, {}, {}, 0, 0});
        groups.back().slots.push_back(s);
        groups.back().first.push_back(groups.back().cells);
        groups.back().cells += width;
    }
    return groups;
}

class TopologyDrawing {
public:
    explicit TopologyDrawing(const TopologyMap& map)
        : map_(map), widths_(widths_of(map)), groups_(groups_of(map, widths_)) {
        size_t cells = 0;
        for (const auto& group : groups_) cells += group.cells;
        const double gaps = kGap * static_cast<double>(groups_.empty() ? 0 : groups_.size() - 1);
        // As wide as a phone, unless the cells became too small to point at.
        pitch_ =
            std::clamp((kWidth - kLeft - gaps) / static_cast<double>(std::max<size_t>(cells, 1)), 6.0, 18.0);
        double x = kLeft;
        for (auto& group : groups_) {
            group.x = x;
            x += pitch_ * static_cast<double>(group.cells) + kGap;
        }
        width_ = std::max(x - kGap, kWidth);
    }

    std::string str(const std::string& label) {
        headings();
        for (size_t p = 0; p < map_.rows.size(); ++p) row(p);
        const double bottom = kTop + pitch_ * static_cast<double>(map_.rows.size());
        text(width_ / 2, bottom + 16, "middle", "weight matrices, one cell per head (FFN: gate, up, down)");
        body_ += fmt::format(
            R"svg(<text transform="translate(10 {:.1f}) rotate(-90)" text-anchor="middle">layer</text>)svg",
            (kTop + bottom) / 2);
        const double height = legend(bottom + 38);
        return fmt::format(
                   R"svg(<svg xmlns="http://www.w3.org/2000/svg" class="topology" role="img" aria-label="{}" )svg"
                   R"svg(viewBox="0 0 {:.1f} {:.1f}" width="{:.1f}" height="{:.1f}" font-size="11" )svg"
                   R"svg(font-family="system-ui,sans-serif" style="fill:var(--muted,#55534e)">)svg",
                   escape(label), width_, height, width_, height) +
               body_ + "</svg>";
    }

private:
    static constexpr double kWidth = 336, kLeft = 36, kTop = 20, kGap = 9;

    void text(double x, double y, const char* anchor, const std::string& words) {
        body_ += fmt::format(R"svg(<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>)svg", x, y, anchor,
                             escape(words));
    }

    void headings() {
        for (const auto& group : groups_)
            text(group.x + pitch_ * static_cast<double>(group.cells) / 2, kTop - 7, "middle", group.name);
    }

    void row(size_t p) {
        const double y = kTop + pitch_ * static_cast<double>(p);
        // Numbers with enough distance, and the last one if it does not touch its neighbor.
        const auto step = static_cast<size_t>(std::ceil(12.0 / pitch_));
        const size_t every = step <= 1 ? 1 : (step <= 2 ? 2 : 5);
        if (p % every == 0) text(kLeft - 5, y + pitch_ / 2 + 3.5, "end", std::to_string(p));
        for (const auto& group : groups_) {
            for (size_t i = 0; i < group.slots.size(); ++i)
                slot(p, group.slots[i], group.x + pitch_ * static_cast<double>(group.first[i]), y);
        }
    }

    // Draws unshared cells as one path, so that the picture of a large model stays small.
    void slot(size_t p, size_t s, double x0, double y) {
        const TopologyCells& cells = map_.rows[p][s];
        const SlotFactors factors = map_.factors.empty() ? SlotFactors{} : map_.factors[p][s];
        const double size = pitch_ - 1.5;
        if (map_.replaced(p, s)) {
            const AttentionSource& source = map_.sources[p];
            const size_t from = source.from(p);
            path(box(x0, y + size * 0.4, pitch_ * static_cast<double>(widths_[s]) - 1.5, size * 0.2),
                 "fill:" + ramp_color(from, map_.rows.size()),
                 fmt::format("layer {}, {}: none, {} of layer {} instead", p, slot_name(map_.slots[s]),
                             source.kv ? "keys and values" : "attention probabilities", from));
        }
        std::string plain, dots;
        for (size_t c = 0; c < cells.size(); ++c) {
            const double x = x0 + pitch_ * static_cast<double>(c);
            if (factors.text.find("LoRA") != std::string::npos) dots += dot(x + size / 2, y + size / 2);
            const bool borrowed = map_.borrowed(p, s, c);
            if (!borrowed && cells[c].borrowers == 0) {
                plain += factors.instead ? bars(x, y, size) : box(x, y, size, size);
                continue;
            }
            if (factors.instead) {
                const std::string color = ramp_color(cells[c].layer, map_.rows.size());
                path(
                    bars(x, y, size),
                    borrowed ? "fill:" + color : fmt::format("{};stroke:{};stroke-width:1", kOwnStyle, color),
                    describe(p, s, c));
                continue;
            }
            const std::string color = ramp_color(cells[c].layer, map_.rows.size());
            // The outline of a lending cell lies inside it.
            const double inset = borrowed ? 0 : 1;
            const std::string style =
                borrowed ? "fill:" + color : fmt::format("{};stroke:{};stroke-width:2", kOwnStyle, color);
            body_ += fmt::format(
                R"svg(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" style="{}"><title>{}</title></rect>)svg",
                x + inset, y + inset, size - 2 * inset, size - 2 * inset, style, escape(describe(p, s, c)));
        }
        const std::string own =
            fmt::format("layer {}, {}: own weights, used here only", p, slot_name(map_.slots[s]));
        const std::string title = factors.text.empty() ? own : own + ", " + factors.text;
        if (!plain.empty()) path(plain, kOwnStyle, title);
        if (!dots.empty())
            path(dots, kDotStyle, fmt::format("layer {}, {}: {}", p, slot_name(map_.slots[s]), factors.text));
    }

    void path(const std::string& d, const std::string& style, const std::string& title) {
        body_ +=
            fmt::format(R"svg(<path d="{}" style="{}"><title>{}</title></path>)svg", d, style, escape(title));
    }
    static std::string box(double x, double y, double width, double height) {
        return fmt::format("M{:.1f} {:.1f}h{:.1f}v{:.1f}h-{:.1f}z", x, y, width, height, width);
    }
    // Two thin bars, for factors instead of a full matrix.
    static std::string bars(double x, double y, double size) {
        return box(x, y, size * 0.3, size) + box(x + size * 0.45, y, size * 0.55, size * 0.3);
    }
    static std::string dot(double x, double y) {
        constexpr double r = 1.6;
        return fmt::format("M{:.1f} {:.1f}a{} {} 0 1 0 {} 0a{} {} 0 1 0 -{} 0", x - r, y, r, r, 2 * r, r, r,
                           2 * r);
    }

    std::string describe(size_t p, size_t s, size_t c) const {
        const TopologyCells& cells = map_.rows[p][s];
        const TopologyCell& cell = cells[c];
        const bool heads = cells.size() > 1 || cell.head >= 0;
        const std::string place = heads ? fmt::format("layer {}, {}, head {}", p, slot_name(map_.slots[s]), c)
                                        : fmt::format("layer {}, {}", p, slot_name(map_.slots[s]));
        const SlotFactors factors = map_.factors.empty() ? SlotFactors{} : map_.factors[p][s];
        const std::string more = factors.text.empty() ? "" : ", " + factors.text;
        if (!map_.borrowed(p, s, c))
            return fmt::format("{}: own weights, also used in {} later place{}{}", place, cell.borrowers,
                               cell.borrowers == 1 ? "" : "s", more);
        if (cell.head < 0) return fmt::format("{}: weights of layer {}{}", place, cell.layer, more);
        return fmt::format("{}: weights of layer {}, head {}{}", place, cell.layer, cell.head, more);
    }

    bool has_factors() const {
        for (const auto& row : map_.factors) {
            for (const auto& factors : row) {
                if (!factors.text.empty()) return true;
            }
        }
        return false;
    }

    bool has_sources() const {
        return std::any_of(map_.sources.begin(), map_.sources.end(),
                           [](const AttentionSource& source) { return !source.own(); });
    }

    // Returns the height of the whole picture.
    double legend(double y) {
        const auto swatch = [&](double x, const std::string& style, double inset) {
            body_ += fmt::format(
                R"svg(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" style="{}"/>)svg", x + inset,
                y - 9 + inset, 10 - 2 * inset, 10 - 2 * inset, style);
        };
        const size_t n = map_.rows.size();
        swatch(kLeft, kOwnStyle, 0);
        text(kLeft + 15, y, "start", "own weights");
        swatch(kLeft + 100, fmt::format("{};stroke:{};stroke-width:2", kOwnStyle, ramp_color(n / 3, n)), 1);
        text(kLeft + 115, y, "start", "own, also used by later layers");
        y += 20;
        if (has_factors()) {
            path(bars(kLeft, y - 9, 10), kOwnStyle, "weights in factors");
            text(kLeft + 15, y, "start", "in factors");
            swatch(kLeft + 100, kOwnStyle, 0);
            path(dot(kLeft + 105, y - 4), kDotStyle, "LoRA");
            text(kLeft + 115, y, "start", "with a LoRA of its own");
            y += 20;
        }
        if (has_sources()) {
            path(box(kLeft, y - 5, 10, 2), "fill:" + ramp_color(n / 3, n), "attention of another layer");
            text(kLeft + 15, y, "start", "none: attention of another layer");
            y += 20;
        }
        const double x0 = kLeft + 142, room = 120;
        text(x0 - 7, y, "end", "borrowed from layer 0");
        const double step = room / static_cast<double>(std::max<size_t>(n, 1));
        for (size_t p = 0; p < n; ++p) {
            body_ += fmt::format(
                R"svg(<rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="10" style="fill:{}"/>)svg",
                x0 + step * static_cast<double>(p), y - 9, step + 0.3, ramp_color(p, n));
        }
        text(x0 + room + 7, y, "start", std::to_string(n == 0 ? 0 : n - 1));
        return y + 8;
    }

    const TopologyMap& map_;
    std::vector<size_t> widths_;  // per slot
    std::vector<Group> groups_;
    std::string body_;
    double pitch_ = 0, width_ = 0;
};

}  // namespace

std::string topology_svg(const TopologyMap& map, const std::string& label) {
    return TopologyDrawing(map).str(label);
}

std::string topology_svg(const Model& model) {
    const TopologyMap map = topology_map(model);
    return topology_svg(map, model.label + ": " + topology_summary(map));
}

}  // namespace refold
