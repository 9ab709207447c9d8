#include "engine/torch/attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>

#include "engine/torch/held.h"

namespace refold {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kBlock = 128;  // queries whose scores exist at a time

// Queries [first, first + count), and the keys [first_key, first_key + keys) that some of them may see.
struct Block {
    int64_t first, count;
    int64_t first_key, keys;
    int64_t token;  // position of the first query, without the prefix
};

Block block_at(const AttentionRule& rule, int64_t first, int64_t count, int64_t queries, int64_t keys) {
    const int64_t token = keys - rule.prefix - queries + first;
    Block block{first, count, 0, keys, token};
    if (rule.causal || rule.window > 0) block.keys = rule.prefix + token + count;
    if (rule.window > 0) block.first_key = std::max(int64_t{0}, token - rule.window + 1);
    block.keys -= block.first_key;
    return block;
}

// [sequences * tokens, heads * head_dim] to [sequences * groups, tokens * per_group, head_dim], and back.
at::Tensor to_groups(const AttentionRule& rule, const at::Tensor& x, int64_t per_group) {
    return x.reshape({rule.sequences, -1, rule.groups, per_group, rule.head_dim})
        .transpose(1, 2)
        .reshape({rule.sequences * rule.groups, -1, rule.head_dim});
}

at::Tensor from_groups(const AttentionRule& rule, const at::Tensor& x) {
    return x.reshape({rule.sequences, rule.groups, -1, rule.per_group, rule.head_dim})
        .transpose(1, 2)
        .reshape({-1, rule.groups * rule.per_group * rule.head_dim});
}

// Position of the query minus that of the key: [queries, 1, keys].
at::Tensor distances(const AttentionRule& rule, const Block& block, const at::Tensor& like) {
    const auto options = like.options().dtype(at::kLong);
    const int64_t first_key = block.first_key - rule.prefix;
    return at::arange(block.token, block.token + block.count, options).reshape({-1, 1, 1}) -
           at::arange(first_key, first_key + block.keys, options);
}

// The softmax over keys and the head's sink, without the sink.
at::Tensor softmax_with_sinks(const AttentionRule& rule, const at::Tensor& scores) {
    if (!rule.sinks.defined()) return at::softmax(scores, -1);
    const int64_t queries = scores.size(1) / rule.per_group;
    const at::Tensor sinks = rule.sinks.to(scores.scalar_type())
                                 .reshape({1, rule.groups, 1, rule.per_group})
                                 .expand({rule.sequences, rule.groups, queries, rule.per_group})
                                 .reshape({scores.size(0), scores.size(1), 1});
    return at::softmax(at::cat({scores, sinks}, -1), -1).narrow(-1, 0, scores.size(-1)).contiguous();
}

// Softmax of scores [sequences * groups, queries * per_group, keys], after the soft cap. Overwrites the
// scores.
at::Tensor softmax_of_seen(const AttentionRule& rule, const Block& block, const at::Tensor& scores) {
    const at::Tensor view =
        scores.view({rule.sequences, rule.groups, block.count, rule.per_group, block.keys});
    if (rule.slopes.defined()) {
        const at::Tensor bias = distances(rule, block, scores).abs().to(scores.scalar_type());
        view.sub_(rule.slopes.to(scores.scalar_type()).view({rule.groups, 1, rule.per_group, 1}) * bias);
    }
    // Not -infinity, which would give NaN for a query that sees no key.
    constexpr float kHidden = std::numeric_limits<float>::lowest();
    if (rule.window == 0 && !rule.padding.defined()) {
        if (rule.causal && block.count > 1) {
            // Only keys of the block's own tokens can be later than a query.
            Block own = block;
            own.first_key += block.keys - block.count;
            own.keys = block.count;
            const at::Tensor later = distances(rule, own, scores) < 0;
            view.narrow(-1, block.keys - block.count, block.count).masked_fill_(later, kHidden);
        }
        return softmax_with_sinks(rule, scores);
    }
    at::Tensor hidden;
    if (rule.window > 0) {
        const at::Tensor distance = distances(rule, block, scores);
        hidden = (distance < 0).logical_or_(distance >= rule.window);
    } else if (rule.causal) {
        hidden = distances(rule, block, scores) < 0;
    }
    if (rule.padding.defined()) {
        const at::Tensor padding = rule.padding.narrow(0, block.first_key, block.keys);
        hidden = hidden.defined() ? hidden.logical_or(padding) : padding;
    }
    view.masked_fill_(hidden, kHidden);
    const at::Tensor out = softmax_with_sinks(rule, scores);
    if (rule.padding.defined()) out.view_as(view).masked_fill_(hidden, 0);
    return out;
}

at::Tensor softmax_gradient(const at::Tensor& gradient, const at::Tensor& probabilities) {
    return at::_softmax_backward_data(gradient, probabilities, -1, probabilities.scalar_type());
}

at::ScalarType wide(at::ScalarType type) { return type == at::kBFloat16 ? at::kFloat : type; }

struct Attention : torch::autograd::Function<Attention> {
    struct Scores {
        at::Tensor probabilities, capped;
    };

    static at::Tensor queries_of(const AttentionRule& rule, const Block& block, const at::Tensor& q) {
        return q.narrow(1, block.first * rule.per_group, block.count * rule.per_group);
    }
    static at::Tensor keys_of(const Block& block, const at::Tensor& k) {
        return k.narrow(1, block.first_key, block.keys);
    }

    static Scores scores(const AttentionRule& rule, const Block& block, const at::Tensor& q,
                         const at::Tensor& k) {
        at::Tensor scores = at::bmm(queries_of(rule, block, q), keys_of(block, k).transpose(1, 2));
        scores = scores.to(wide(scores.scalar_type()));
        at::Tensor capped;
        if (rule.softcap > 0) {
            capped = scores.div_(rule.softcap).tanh_();
            scores = capped * rule.softcap;
        }
        return {softmax_of_seen(rule, block, scores), capped};
    }

    template <class Visit>
    static void for_each_block(const AttentionRule& rule, const at::Tensor& q, const at::Tensor& k,
                               Visit&& visit) {
        const int64_t queries = q.size(1) / rule.per_group;
        for (int64_t first = 0; first < queries; first += kBlock)
            visit(block_at(rule, first, std::min(kBlock, queries - first), queries, k.size(1)));
    }

    // q, k, v and the result [sequences * groups, ...].
    static at::Tensor forward(AutogradContext* context, const AttentionRule& rule, const at::Tensor& q,
                              const at::Tensor& k, const at::Tensor& v, const at::Tensor& /*sinks*/) {
        context->save_for_backward({q, k, v});
        context->saved_data["rule"] = hold(rule);
        const at::Tensor out = at::empty_like(q);
        for_each_block(rule, q, k, [&](const Block& block) {
            const at::Tensor p = scores(rule, block, q, k).probabilities.to(v.scalar_type());
            queries_of(rule, block, out).copy_(at::bmm(p, keys_of(block, v)));
        });
        return out;
    }

    static variable_list backward(AutogradContext* context, variable_list gradients) {
        const auto saved = context->get_saved_variables();
        const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
        const auto& rule = held<AttentionRule>(context->saved_data["rule"]);
        const at::Tensor gradient = gradients[0].contiguous();
        const auto sums = q.options().dtype(wide(q.scalar_type()));
        const at::Tensor gq = at::empty_like(q), gk = at::zeros(k.sizes(), sums),
                         gv = at::zeros(v.sizes(), sums);
        at::Tensor gsinks;
        if (rule.sinks.defined()) gsinks = at::zeros(rule.sinks.sizes(), sums);
        for_each_block(rule, q, k, [&](const Block& block) {
            const auto [p, capped] = scores(rule, block, q, k);
            const at::Tensor g = queries_of(rule, block, gradient);
            keys_of(block, gv).add_(at::bmm(p.to(q.scalar_type()).transpose(1, 2), g));
            const at::Tensor gp = at::bmm(g, keys_of(block, v).transpose(1, 2)).to(p.scalar_type());
            at::Tensor gs = softmax_gradient(gp, p);
            if (gsinks.defined()) {  // what a sink takes from all keys of its row
                const at::Tensor taken = (1 - p.sum(-1)) * (gp * p).sum(-1);
                gsinks.sub_(taken.reshape({rule.sequences, rule.groups, block.count, rule.per_group})
                                .sum(at::IntArrayRef{0, 2})
                                .reshape({-1}));
            }
            if (capped.defined()) gs = gs.mul_(1 - capped * capped);
            gs = gs.to(q.scalar_type());
            queries_of(rule, block, gq).copy_(at::bmm(gs, keys_of(block, k)));
            keys_of(block, gk).add_(at::bmm(gs.transpose(1, 2), queries_of(rule, block, q)));
        });
        if (gsinks.defined()) gsinks = gsinks.to(rule.sinks.scalar_type());
        return {{}, gq, gk.to(k.scalar_type()), gv.to(v.scalar_type()), gsinks};
    }
};

}  // namespace

at::Tensor attention(const AttentionRule& rule, const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& v) {
    // An argument that is undefined has no device to run on.
    const at::Tensor sinks = rule.sinks.defined() ? rule.sinks : at::empty({0}, q.options());
    return from_groups(rule, Attention::apply(rule, to_groups(rule, q, rule.per_group), to_groups(rule, k, 1),
                                              to_groups(rule, v, 1), sinks));
}

}  // namespace refold
