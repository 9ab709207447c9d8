#include "analyze/attention_maps.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/group.h"

namespace refold {
namespace {

void add_to(SquareMatrix& sums, const SquareMatrix& cosines) {
    if (sums.size() == 0) sums = SquareMatrix(cosines.size(), 0.0);
    for (size_t i = 0; i < cosines.size(); ++i) {
        for (size_t j = 0; j < cosines.size(); ++j) sums(i, j) += cosines(i, j);
    }
}

SquareMatrix divided(SquareMatrix sums, size_t count) {
    for (size_t i = 0; i < sums.size(); ++i) {
        for (size_t j = 0; j < sums.size(); ++j) sums(i, j) /= static_cast<double>(count);
    }
    return sums;
}

}  // namespace

AttentionMaps::AttentionMaps(const Model& model, std::vector<Unit> units,
                             std::vector<std::set<size_t>> samples)
    : model_(model),
      units_(std::move(units)),
      samples_(std::move(samples)),
      sample_sums_(samples_.size()),
      sample_counts_(samples_.size(), 0) {}

std::set<std::pair<size_t, Tap>> AttentionMaps::taps() const {
    std::set<std::pair<size_t, Tap>> taps;
    for (size_t p = 0; p < model_.topology.layers.size(); ++p) {
        if (model_.topology.has(p, Slot::attn_o) && !model_.topology.source(p).probabilities)
            taps.insert({p, Tap::probabilities});
    }
    return taps;
}

void AttentionMaps::see(const Tapped& seen) {
    const int64_t heads = model_.config.n_head_of(seen.layer), window = model_.config.window(seen.layer);
    if (gram_.size() == 0 && !rows_.contains(seen.layer)) {
        rows_[seen.layer] = {heads_, static_cast<size_t>(heads)};
        heads_ += static_cast<size_t>(heads);
    }
    const float* row = seen.values.data();
    for (int64_t i = 0; i < heads * seen.tokens; ++i, row += seen.features) {
        // Tokens outside a token's window count as 0; the tap's values there are undefined.
        const int64_t own = model_.config.n_prefix + seen.first_token + i % seen.tokens + 1,
                      end = model_.config.causal ? own : seen.features,
                      begin = window > 0 ? std::max<int64_t>(0, end - window) : 0;
        step_.insert(step_.end(), static_cast<size_t>(begin), 0.0F);
        step_.insert(step_.end(), row + begin, row + end);
    }
}

void AttentionMaps::end_step() {
    if (gram_.size() != heads_) gram_ = DotProducts(heads_);
    if (heads_ > 0) gram_.add(step_);
    step_.clear();
}

void AttentionMaps::end_sequence() {
    if (heads_ == 0) fail(ErrorCode::input, "analyze", "{}: no layer has attention of its own", model_.label);
    const size_t n = rows_.size();
    layers_.resize(n);
    mean_maps_.resize(n);
    size_t i = 0;
    for (auto a = rows_.begin(); a != rows_.end(); ++a, ++i) {
        layers_[i].resize(i + 1);
        mean_maps_[i].resize(i + 1);
        size_t j = 0;
        for (auto b = rows_.begin(); j <= i; ++b, ++j) {
            mean_maps_[i][j].add(layer_cosine(a->second, b->second, true));
            if (a->second.count == b->second.count)
                layers_[i][j].add(layer_cosine(a->second, b->second, false));
        }
    }
    add_to(head_sums_, cosines_of(gram_.lower(), heads_));
    const bool sampled = std::any_of(samples_.begin(), samples_.end(),
                                     [&](const auto& sample) { return sample.contains(sequences_); });
    const SquareMatrix units = sampled ? unit_cosines() : SquareMatrix();
    for (size_t s = 0; s < samples_.size(); ++s) {
        if (!samples_[s].contains(sequences_)) continue;
        add_to(sample_sums_[s], units);
        ++sample_counts_[s];
    }
    gram_.clear();
    ++sequences_;
}

void AttentionMaps::merge_over_processes() {
    std::vector<RunningMean*> means;
    for (auto* triangle : {&layers_, &mean_maps_})
        for (auto& row : *triangle)
            for (RunningMean& mean : row) means.push_back(&mean);
    refold::merge_over_processes(means);
    group().sum(head_sums_.values());
    for (size_t s = 0; s < samples_.size(); ++s) {
        if (sample_sums_[s].size() == 0) sample_sums_[s] = SquareMatrix(units_.size(), 0.0);
        auto count = static_cast<double>(sample_counts_[s]);
        group().sum(sample_sums_[s].values());
        group().sum({&count, 1});
        sample_counts_[s] = static_cast<size_t>(count);
    }
}

size_t AttentionMaps::owner(size_t layer) const {
    return model_.topology.source(layer).probabilities.value_or(layer);
}

const AttentionMaps::Rows* AttentionMaps::rows_of(size_t layer) const {
    const auto found = rows_.find(owner(layer));
    return found == rows_.end() ? nullptr : &found->second;
}

double AttentionMaps::layer_cosine(const Rows& a, const Rows& b, bool of_means) const {
    const auto dot = [&](const Rows& x, const Rows& y) {
        double sum = 0;
        for (size_t i = 0; i < x.count; ++i) {
            const size_t first = of_means ? 0 : i, last = of_means ? y.count : i + 1;
            for (size_t j = first; j < last; ++j) sum += gram_(x.first + i, y.first + j);
        }
        return sum;
    };
    return dot(a, b) / std::sqrt(dot(a, a) * dot(b, b));
}

SquareMatrix AttentionMaps::unit_cosines() const {
    const auto group = static_cast<size_t>(model_.config.q_per_kv());
    const auto first_head = [&](const Unit& unit) -> std::optional<size_t> {
        const Rows* rows = rows_of(unit.layer);
        if (rows == nullptr) return std::nullopt;
        return rows->first + static_cast<size_t>(unit.index) * group;
    };
    const size_t n = units_.size();
    std::vector<double> gram(n * n, 0.0);  // 0 for units without maps, which makes their cosines undefined
    for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j <= i; ++j) {
            const auto a = first_head(units_[i]), b = first_head(units_[j]);
            if (!a || !b) continue;
            for (size_t h = 0; h < group; ++h) gram[i * n + j] += gram_(*a + h, *b + h);
        }
    }
    return cosines_of(gram, n);
}

MapSimilarity AttentionMaps::similarity() const {
    const size_t layers = model_.topology.layers.size(), n = rows_.size();
    SquareMatrix means(n), deviations(n), mean_maps(n);
    for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j <= i; ++j) {
            means(i, j) = means(j, i) = layers_[i][j].mean();
            deviations(i, j) = deviations(j, i) = layers_[i][j].deviation();
            mean_maps(i, j) = mean_maps(j, i) = mean_maps_[i][j].mean();
        }
    }
    MapSimilarity out;
    std::vector<std::optional<size_t>> layer(layers), row;
    for (size_t p = 0; p < layers; ++p) {
        const auto found = rows_.find(owner(p));
        if (found == rows_.end() || !model_.topology.has(p, Slot::attn_o)) continue;
        layer[p] = static_cast<size_t>(std::distance(rows_.begin(), found));
        for (size_t h = 0; h < found->second.count; ++h) {
            out.heads.push_back({p, static_cast<int64_t>(h)});
            row.emplace_back(found->second.first + h);
        }
    }
    out.layers = expanded(means, layer);
    out.layer_deviations = expanded(deviations, layer);
    out.layers_of_mean_maps = expanded(mean_maps, layer);
    out.head_cosines = expanded(divided(head_sums_, sequences_), row);
    out.sequences = static_cast<int64_t>(sequences_);
    return out;
}

std::vector<SquareMatrix> AttentionMaps::sample_cosines() const {
    std::vector<SquareMatrix> out;
    for (size_t s = 0; s < samples_.size(); ++s) {
        out.push_back(sample_counts_[s] > 0 ? divided(sample_sums_[s], sample_counts_[s])
                                            : SquareMatrix(units_.size()));
    }
    return out;
}

}  // namespace refold
