/* Numbers side by side, as many as the processor takes at once. */

#ifndef SALTFLAT_VECTORS
#define SALTFLAT_VECTORS

#include <string.h>

#ifdef __AVX512F__
enum { WIDTH = 16 };
#else
enum { WIDTH = 8 };
#endif
typedef float vec __attribute__((vector_size(4 * WIDTH)));

static inline vec get(const float *from) {
    vec v;
    memcpy(&v, from, sizeof v);
    return v;
}

static inline void put(float *to, vec v) { memcpy(to, &v, sizeof v); }

/* Loaded once: the compiler would load it again for each of its uses, and loads are what there is most of. */
static inline vec in_register(vec v) {
#ifdef __x86_64__
    __asm__("" : "+v"(v));
#endif
    return v;
}

/* Two by two: one after the other, each addition would wait for the last. */
static inline float total(vec v) {
    float part[WIDTH];
    memcpy(part, &v, sizeof part);
#pragma GCC unroll 4
    for (int half = WIDTH / 2; half; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}

#endif
