/* SELU, ELU and tanh, forwards and backwards, in one pass each. torch computes them through an exponential that is
   exact to the last digit but one, and slow; this one is as exact on what they need, numbers up to zero.

   Float32, numbers in a row. */

#include "vectors.h"
#include <stddef.h>

typedef int mask __attribute__((vector_size(4 * WIDTH)));

static inline vec where(mask m, vec a, vec b) { return (vec)((m & (mask)a) | (~m & (mask)b)); }
static inline vec all(float x) { return (vec){0} + x; }

/* exp(x) - 1 for x <= 0: x = n log 2 + r with |r| <= log 2 / 2, and exp(r) - 1 by a polynomial (Cephes, Moshier 1989).
   The logarithm is taken off in two parts, of which the first has so few digits that n times it is exact. */
static inline vec expm1_below_zero(vec x) {
    x = where(x < -87.0f, all(-87.0f), x); /* beyond, it is -1 */
    const float rounds = 12582912.0f;      /* 1.5 * 2^23: what is added to it keeps no digits behind the point */
    vec n = (x * 1.44269504088896341f + rounds) - rounds;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    vec power = (vec)((__builtin_convertvector(n, mask) + 127) << 23); /* 2^n */
    return (p * r * r + r) * power + (power - 1.0f);
}

/* Above zero x * above, else (exp(x) - 1) * below. */
static inline vec elu(vec x, float above, float below) {
    vec low = expm1_below_zero(where(x < 0.0f, x, all(0))) * below;
    return where(x <= 0.0f, low, x * above);
}

/* 1 - 2 / (exp(2|x|) + 1), with the sign of x, written so that it is exact around zero too. */
static inline vec hyperbolic(vec x) {
    const mask sign = (mask){0} + (int)0x80000000u;
    vec e = expm1_below_zero((vec)((mask)x | sign) * 2.0f);
    vec size = (0.0f - e) / (e + 2.0f);
    return where(x == x, (vec)((mask)size | ((mask)x & sign)), x);
}

/* The last few numbers go through the same arithmetic, in a vector that is filled up. */
#define FOR_ALL(count, body)                                        \
    for (ptrdiff_t i = 0; i < (count); i += WIDTH) {                \
        size_t some = sizeof(float) * (size_t)((count) - i < WIDTH ? (count) - i : WIDTH); \
        body                                                        \
    }

static inline vec get_some(const float *from, size_t bytes) {
    vec v = {0};
    if (bytes == sizeof v) return get(from);
    memcpy(&v, from, bytes);
    return v;
}

static inline void put_some(float *to, vec v, size_t bytes) {
    if (bytes == sizeof v) put(to, v);
    else memcpy(to, &v, bytes);
}

void saltflat_elu(const float *x, float *y, ptrdiff_t count, float above, float below) {
    FOR_ALL(count, put_some(y + i, elu(get_some(x + i, some), above, below), some);)
}

/* From what came out: its slope is y + below up to zero, and above beyond. */
void saltflat_elu_backward(const float *g, const float *y, float *dx, ptrdiff_t count, float above, float below) {
    FOR_ALL(count, vec v = get_some(y + i, some);
            put_some(dx + i, get_some(g + i, some) * where(v <= 0.0f, v + below, all(above)), some);)
}

void saltflat_tanh(const float *x, float *y, ptrdiff_t count) {
    FOR_ALL(count, put_some(y + i, hyperbolic(get_some(x + i, some)), some);)
}

void saltflat_tanh_backward(const float *g, const float *y, float *dx, ptrdiff_t count) {
    FOR_ALL(count, vec v = get_some(y + i, some); put_some(dx + i, get_some(g + i, some) * (1.0f - v * v), some);)
}
