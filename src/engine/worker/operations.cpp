#include "engine/worker/operations.h"

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace refold::rpc {
namespace {

using Operand = const ggml_tensor*;

bool is_float(Operand t) {
    return t->type == GGML_TYPE_F32 || t->type == GGML_TYPE_F16 || t->type == GGML_TYPE_BF16;
}
bool is_f32(Operand t) { return t->type == GGML_TYPE_F32; }
bool is_i32(Operand t) { return t->type == GGML_TYPE_I32; }
// Adjacent elements of a row are adjacent in memory.
bool has_dense_rows(Operand t) { return t->nb[0] == ggml_type_size(t->type); }
bool is_dense_f32(Operand t) { return is_f32(t) && has_dense_rows(t); }
// The kernels of products look at the strides of dimensions of 1 as well.
bool is_whole(Operand t) {
    return ggml_is_contiguous(t) && t->nb[0] <= t->nb[1] && t->nb[1] <= t->nb[2] && t->nb[2] <= t->nb[3];
}
// Rows at equal distances.
bool has_even_rows(Operand t) {
    return has_dense_rows(t) && t->nb[2] == t->nb[1] * static_cast<size_t>(t->ne[1]) &&
           t->nb[3] == t->nb[2] * static_cast<size_t>(t->ne[2]);
}
bool is_vector_of(Operand t, ggml_type type, int64_t least) {
    return t->type == type && has_dense_rows(t) && t->ne[0] >= least && ggml_nrows(t) == 1;
}
bool has_shape(Operand t, int64_t a, int64_t b, int64_t c, int64_t d) {
    return t->ne[0] == a && t->ne[1] == b && t->ne[2] == c && t->ne[3] == d;
}
bool is_between(int32_t value, int32_t first, int32_t end) { return value >= first && value < end; }

int32_t integer(Operand t, size_t parameter) { return t->op_params[parameter]; }
float real(Operand t, size_t parameter) {
    float out = 0;
    std::memcpy(&out, &t->op_params[parameter], sizeof out);
    return out;
}

bool can_multiply(ggml_type type) { return ggml_get_type_traits_cpu(type)->vec_dot != nullptr; }
bool can_be_written(ggml_type type) { return ggml_get_type_traits_cpu(type)->from_float != nullptr; }
bool can_be_read(ggml_type type) {
    return type == GGML_TYPE_F32 || ggml_get_type_traits(type)->to_float != nullptr;
}

bool is_good_copy(Operand d, Operand s) {
    if (ggml_nelements(d) != ggml_nelements(s) || ggml_nelements(d) > std::numeric_limits<int32_t>::max())
        return false;
    const bool same_shape = ggml_are_same_shape(d, s), contiguous = ggml_is_contiguous(d);
    if (d->type == s->type) {
        if (ggml_blck_size(d->type) == 1) return same_shape || contiguous;
        return (contiguous && ggml_is_contiguous(s)) ||
               (same_shape && has_dense_rows(d) && has_dense_rows(s));
    }
    if (ggml_is_quantized(d->type))
        return is_float(s) && contiguous && has_dense_rows(s) && can_be_written(d->type) &&
               s->ne[0] % ggml_blck_size(d->type) == 0;
    if (ggml_is_quantized(s->type))
        return is_f32(d) && contiguous && has_dense_rows(s) && same_shape && can_be_read(s->type);
    const bool convertible =
        (is_float(d) && is_float(s)) || (is_f32(d) && is_i32(s)) || (is_i32(d) && is_f32(s));
    return convertible && (same_shape || contiguous);
}

bool is_good_binary(Operand d, Operand a, Operand b) {
    const bool types = (is_float(a) && a->type == b->type && b->type == d->type) ||
                       (is_float(a) && is_f32(b) && (d->type == a->type || is_f32(d)));
    return types && ggml_can_repeat(b, a) && ggml_are_same_shape(a, d) && has_dense_rows(a) &&
           has_dense_rows(d);
}

bool is_good_unary(Operand d, Operand s) {
    return is_float(s) && s->type == d->type && ggml_are_same_shape(s, d) && ggml_is_contiguous_rows(s) &&
           ggml_is_contiguous_rows(d);
}

bool is_good_gate(Operand d, Operand a, Operand b) {
    if (!is_float(a) || a->type != d->type || !ggml_is_contiguous_1(a) || !ggml_is_contiguous_1(d) ||
        !is_between(integer(d, 0), 0, GGML_GLU_OP_COUNT) || !is_between(integer(d, 1), 0, 2))
        return false;
    if (b != nullptr)
        return b->type == a->type && ggml_is_contiguous_1(b) && ggml_are_same_shape(a, b) &&
               ggml_are_same_shape(a, d);
    return a->ne[0] % 2 == 0 && has_shape(d, a->ne[0] / 2, a->ne[1], a->ne[2], a->ne[3]);
}

bool is_good_reduction(Operand d, Operand s) {
    return is_dense_f32(s) && is_dense_f32(d) && has_shape(d, 1, s->ne[1], s->ne[2], s->ne[3]);
}

bool is_good_concat(Operand d, Operand a, Operand b) {
    const int32_t along = integer(d, 0);
    if (!is_between(along, 0, GGML_MAX_DIMS) || a->type != b->type || a->type != d->type) return false;
    for (int i = 0; i < GGML_MAX_DIMS; ++i) {
        if (d->ne[i] != (i == along ? a->ne[i] + b->ne[i] : a->ne[i])) return false;
        if (i != along && a->ne[i] != b->ne[i]) return false;
    }
    const bool rows = ggml_is_contiguous_rows(a) && ggml_is_contiguous_rows(b);
    return has_dense_rows(d) && (rows || is_f32(d) || is_i32(d));
}

bool is_good_repeat(Operand d, Operand s) {
    return (is_f32(s) || is_i32(s) || s->type == GGML_TYPE_F16) && s->type == d->type &&
           ggml_can_repeat(s, d) && has_dense_rows(s) && has_dense_rows(d);
}

bool is_good_product(Operand d, Operand w, Operand x) {
    constexpr size_t kHint = 1;  // of another kernel, which refold does not ask for
    return can_multiply(w->type) && is_float(x) && is_f32(d) && integer(d, kHint) == 0 &&
           w->ne[0] == x->ne[0] && x->ne[2] % w->ne[2] == 0 && x->ne[3] % w->ne[3] == 0 &&
           has_dense_rows(w) && has_dense_rows(x) && !ggml_is_transposed(w) && is_whole(d) &&
           has_shape(d, w->ne[1], x->ne[1], x->ne[2], x->ne[3]);
}

bool is_good_expert_product(Operand d, Operand w, Operand x, Operand ids) {
    return can_multiply(w->type) && is_f32(x) && is_f32(d) && is_i32(ids) && w->ne[3] == 1 && x->ne[3] == 1 &&
           ids->ne[2] == 1 && ids->ne[3] == 1 && ids->ne[1] == x->ne[2] && w->ne[0] == x->ne[0] &&
           ids->ne[0] % x->ne[1] == 0 && has_dense_rows(w) && has_dense_rows(x) && !ggml_is_transposed(w) &&
           is_whole(d) && has_shape(d, w->ne[1], ids->ne[0], x->ne[2], 1);
}

bool is_good_add_id(Operand d, Operand a, Operand b, Operand ids) {
    return is_dense_f32(a) && is_dense_f32(b) && is_dense_f32(d) && is_i32(ids) &&
           ggml_are_same_shape(a, d) && a->ne[0] == b->ne[0] && a->ne[1] == ids->ne[0] &&
           a->ne[2] == ids->ne[1];
}

bool is_good_get_rows(Operand d, Operand s, Operand ids) {
    return is_i32(ids) && (is_i32(s) || can_be_read(s->type)) &&
           d->type == (is_i32(s) ? s->type : GGML_TYPE_F32) && has_dense_rows(s) && ggml_is_contiguous(d) &&
           s->ne[2] == ids->ne[1] && s->ne[3] == ids->ne[2] && ids->ne[3] == 1 &&
           has_shape(d, s->ne[0], ids->ne[0], ids->ne[1], ids->ne[2]);
}

bool is_good_set_rows(Operand d, Operand s, Operand ids, Operand into) {
    const bool types = is_f32(s) ? can_be_written(d->type) : s->type == GGML_TYPE_F16 && d->type == s->type;
    return types && (is_i32(ids) || ids->type == GGML_TYPE_I64) && into->type == d->type &&
           ggml_are_same_shape(into, d) && s->ne[0] == d->ne[0] && s->ne[2] == d->ne[2] &&
           s->ne[3] == d->ne[3] && s->ne[1] == ids->ne[0] && s->ne[2] % ids->ne[1] == 0 &&
           s->ne[3] % ids->ne[2] == 0 && ids->ne[3] == 1 && ggml_is_contiguous_rows(s) &&
           ggml_is_contiguous_rows(d);
}

// ALiBi's slopes are added to what a mask says.
bool has_good_slopes(float most, Operand mask) {
    return std::isfinite(most) && (most <= 0 || mask != nullptr);
}

bool is_good_softmax(Operand d, Operand s, Operand mask, Operand sinks) {
    if (!is_f32(s) || !is_f32(d) || !ggml_are_same_shape(s, d) || !ggml_is_contiguous(s) ||
        !ggml_is_contiguous(d) || !has_good_slopes(real(d, 1), mask))
        return false;
    if (mask != nullptr && ((mask->type != GGML_TYPE_F16 && !is_f32(mask)) || !ggml_is_contiguous(mask) ||
                            mask->ne[0] != s->ne[0] || mask->ne[1] < s->ne[1] ||
                            s->ne[2] % mask->ne[2] != 0 || s->ne[3] % mask->ne[3] != 0))
        return false;
    return sinks == nullptr || is_vector_of(sinks, GGML_TYPE_F32, s->ne[2]);
}

// Where its memory is known, the kernel may read so many numbers from the first one.
bool reaches(Operand t, int64_t numbers) {
    if (t->buffer == nullptr) return true;
    const auto* end = static_cast<const std::byte*>(ggml_backend_buffer_get_base(t->buffer)) +
                      ggml_backend_buffer_get_size(t->buffer);
    return numbers * static_cast<int64_t>(sizeof(float)) <= end - static_cast<const std::byte*>(t->data);
}

bool is_good_rotation(Operand d, Operand s, Operand positions, Operand factors) {
    const int32_t rotated = integer(d, 1), mode = integer(d, 2), first = integer(d, 15);
    if ((mode != 0 && mode != GGML_ROPE_TYPE_NEOX) || (!is_f32(s) && s->type != GGML_TYPE_F16) ||
        s->type != d->type || !ggml_are_same_shape(s, d) || !has_dense_rows(s) || !has_dense_rows(d))
        return false;
    if (rotated <= 0 || rotated % 2 != 0 || first < 0 || first % 2 != 0 || s->ne[0] % 2 != 0 ||
        int64_t{rotated} + first > s->ne[0])
        return false;
    if (!is_vector_of(positions, GGML_TYPE_I32, s->ne[2]) || positions->ne[0] != s->ne[2]) return false;
    // The kernel reads factors for the numbers that it does not rotate as well.
    return factors == nullptr ||
           (is_vector_of(factors, GGML_TYPE_F32, rotated / 2) && reaches(factors, s->ne[0] / 2));
}

bool is_good_attention(Operand d, const ggml_tensor* const* src) {
    Operand q = src[0], k = src[1], v = src[2], mask = src[3], sinks = src[4];
    const bool types = is_dense_f32(q) && can_multiply(k->type) && can_be_read(v->type) &&
                       has_dense_rows(k) && has_dense_rows(v) && is_f32(d);
    if (!types || q->ne[0] != k->ne[0] || k->ne[1] != v->ne[1] || q->ne[2] % k->ne[2] != 0 ||
        q->ne[2] % v->ne[2] != 0 || q->ne[3] != k->ne[3] || q->ne[3] != v->ne[3] || !is_whole(d) ||
        !has_shape(d, v->ne[0], q->ne[2], q->ne[1], q->ne[3]) || !has_good_slopes(real(d, 1), mask))
        return false;
    if (const int32_t precision = integer(d, 3); precision != GGML_PREC_DEFAULT && precision != GGML_PREC_F32)
        return false;
    if (mask != nullptr &&
        (mask->type != GGML_TYPE_F16 || !ggml_is_contiguous(mask) || mask->ne[0] < k->ne[1] ||
         mask->ne[1] < q->ne[1] || q->ne[2] % mask->ne[2] != 0 || q->ne[3] % mask->ne[3] != 0))
        return false;
    return sinks == nullptr || is_vector_of(sinks, GGML_TYPE_F32, q->ne[2]);
}

bool is_good_sort(Operand d, Operand s) {
    return is_f32(s) && is_i32(d) && ggml_is_contiguous(s) && ggml_is_contiguous(d) &&
           ggml_are_same_shape(s, d) && is_between(integer(d, 0), 0, 2);
}

bool is_good_top_k(Operand d, Operand s) {
    return is_f32(s) && is_i32(d) && ggml_is_contiguous(s) && ggml_is_contiguous(d) && d->ne[0] <= s->ne[0] &&
           has_shape(d, d->ne[0], s->ne[1], s->ne[2], s->ne[3]);
}

bool is_good_norm(Operand d, Operand s) {
    const float eps = real(d, 0);
    return is_dense_f32(s) && is_dense_f32(d) && ggml_are_same_shape(s, d) && std::isfinite(eps) && eps >= 0;
}

bool is_good_by_even_rows(Operand d, Operand s) {
    return is_f32(s) && is_f32(d) && ggml_are_same_shape(s, d) && has_even_rows(s) && has_even_rows(d);
}

// The first `least` sources must be there, those up to `most` can be.
struct Sources {
    int least = 0, most = 0;
};

Sources sources_of(ggml_op op) {
    switch (op) {
        case GGML_OP_DUP:
        case GGML_OP_CONT:
        case GGML_OP_SQR:
        case GGML_OP_SQRT:
        case GGML_OP_UNARY:
        case GGML_OP_SCALE:
        case GGML_OP_CLAMP:
        case GGML_OP_NORM:
        case GGML_OP_RMS_NORM:
        case GGML_OP_SUM_ROWS:
        case GGML_OP_MEAN:
        case GGML_OP_REPEAT:
        case GGML_OP_ARGSORT:
        case GGML_OP_TOP_K: return {1, 1};
        case GGML_OP_GLU: return {1, 2};
        case GGML_OP_CPY:
        case GGML_OP_ADD:
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV:
        case GGML_OP_CONCAT:
        case GGML_OP_MUL_MAT:
        case GGML_OP_GET_ROWS: return {2, 2};
        case GGML_OP_MUL_MAT_ID:
        case GGML_OP_ADD_ID:
        case GGML_OP_SET_ROWS: return {3, 3};
        case GGML_OP_SOFT_MAX: return {1, 3};
        case GGML_OP_ROPE: return {2, 3};
        case GGML_OP_FLASH_ATTN_EXT: return {3, 5};
        default: return {};
    }
}

bool is_good(Operand d) {
    const ggml_tensor* const* src = d->src;
    switch (d->op) {
        case GGML_OP_DUP:
        case GGML_OP_CONT:
        case GGML_OP_CPY: return is_good_copy(d, src[0]);
        case GGML_OP_ADD:
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV: return is_good_binary(d, src[0], src[1]);
        case GGML_OP_SQR:
        case GGML_OP_SQRT: return is_good_unary(d, src[0]);
        case GGML_OP_UNARY:
            return is_between(integer(d, 0), 0, GGML_UNARY_OP_COUNT) && is_good_unary(d, src[0]);
        case GGML_OP_GLU: return is_good_gate(d, src[0], src[1]);
        case GGML_OP_SCALE:
        case GGML_OP_CLAMP: return is_good_by_even_rows(d, src[0]);
        case GGML_OP_NORM:
        case GGML_OP_RMS_NORM: return is_good_norm(d, src[0]);
        case GGML_OP_SUM_ROWS:
        case GGML_OP_MEAN: return is_good_reduction(d, src[0]);
        case GGML_OP_CONCAT: return is_good_concat(d, src[0], src[1]);
        case GGML_OP_REPEAT: return is_good_repeat(d, src[0]);
        case GGML_OP_MUL_MAT: return is_good_product(d, src[0], src[1]);
        case GGML_OP_MUL_MAT_ID: return is_good_expert_product(d, src[0], src[1], src[2]);
        case GGML_OP_ADD_ID: return is_good_add_id(d, src[0], src[1], src[2]);
        case GGML_OP_GET_ROWS: return is_good_get_rows(d, src[0], src[1]);
        case GGML_OP_SET_ROWS: return is_good_set_rows(d, src[0], src[1], src[2]);
        case GGML_OP_SOFT_MAX: return is_good_softmax(d, src[0], src[1], src[2]);
        case GGML_OP_ROPE: return is_good_rotation(d, src[0], src[1], src[2]);
        case GGML_OP_FLASH_ATTN_EXT: return is_good_attention(d, src);
        case GGML_OP_ARGSORT: return is_good_sort(d, src[0]);
        case GGML_OP_TOP_K: return is_good_top_k(d, src[0]);
        default: return false;
    }
}

std::string shape_text(Operand t) {
    return fmt::format("{} [{}, {}, {}, {}]", ggml_type_name(t->type), t->ne[0], t->ne[1], t->ne[2],
                       t->ne[3]);
}

}  // namespace

bool is_view(const ggml_tensor* tensor) {
    return tensor->op == GGML_OP_NONE || tensor->op == GGML_OP_VIEW || tensor->op == GGML_OP_RESHAPE ||
           tensor->op == GGML_OP_PERMUTE || tensor->op == GGML_OP_TRANSPOSE;
}

std::string problem_of(const ggml_tensor* operation) {
    const char* name = ggml_op_name(operation->op);
    const auto [least, most] = sources_of(operation->op);
    if (most == 0) return fmt::format("{} is no operation of refold's clients", name);
    for (int i = 0; i < GGML_MAX_SRC; ++i) {
        const ggml_tensor* source = operation->src[i];
        if (source == nullptr ? i < least : i >= most)
            return fmt::format("{} takes {} to {} tensors", name, least, most);
        if (source != nullptr && ggml_is_empty(source)) return fmt::format("{} of an empty tensor", name);
        if (source != nullptr && ggml_nrows(source) > std::numeric_limits<int32_t>::max())
            return fmt::format("{} of {} rows", name, ggml_nrows(source));
    }
    if (is_good(operation)) return "";
    std::string text = fmt::format("{} cannot give {}", name, shape_text(operation));
    for (int i = 0; i < GGML_MAX_SRC; ++i)
        if (operation->src[i] != nullptr)
            text += fmt::format("{} {}", i == 0 ? " of" : ",", shape_text(operation->src[i]));
    return text + " with these strides and parameters";
}

Numbers numbers_of(const ggml_tensor* operation) {
    switch (operation->op) {
        case GGML_OP_GET_ROWS: return {operation->src[1], operation->src[0]->ne[1]};
        case GGML_OP_SET_ROWS: return {operation->src[1], operation->ne[1]};
        case GGML_OP_MUL_MAT_ID: return {operation->src[2], operation->src[0]->ne[2]};
        case GGML_OP_ADD_ID: return {operation->src[2], operation->src[1]->ne[1]};
        default: return {};
    }
}

bool gives_numbers_below(const ggml_tensor* operation, int64_t bound) {
    switch (operation->op) {
        case GGML_OP_ARGSORT:
        case GGML_OP_ARGMAX:
        case GGML_OP_TOP_K: return operation->src[0]->ne[0] <= bound;
        default: return false;
    }
}

}  // namespace refold::rpc
