/* The loops of the engine for which torch has no fast operation. Plain C; the compiler makes it wide.

   Everything is float32 and contiguous, with the channels innermost. Sums are kept in sixteen lanes and a few
   accumulators, so their rounding is smaller than that of one running sum. */

#if defined(__AVX2__) && !defined(__AVX512F__)
#include <immintrin.h>
#endif
#include <math.h>
#include <stddef.h>
#include <string.h>

typedef float lanes __attribute__((vector_size(64)));
typedef double wide __attribute__((vector_size(64)));
enum { LANES = 16, MOST_TAPS = 8, SUMMED = 512 };

static inline lanes load(const float *from) {
    lanes v;
    memcpy(&v, from, sizeof v);
    return v;
}

static inline void store(float *to, lanes v) { memcpy(to, &v, sizeof v); }

#ifdef __AVX512F__
enum { FEW = 16 };
#else
enum { FEW = 8 }; /* nine sums of as many numbers stay in the registers */
#endif
typedef float few __attribute__((vector_size(4 * FEW)));

static inline few load_few(const float *from) {
    few v;
    memcpy(&v, from, sizeof v);
    return v;
}

/* All nine taps of a 3x3 kernel with stride 1 in one pass, for FEW channels from c on; sums: 9 x channels. */
static void depthwise_3x3(
    const float *image, const float *grads, float *sums, ptrdiff_t height, ptrdiff_t width, ptrdiff_t out_height,
    ptrdiff_t out_width, ptrdiff_t channels, ptrdiff_t pad_h, ptrdiff_t pad_w)
{
    few total[9];
    memset(total, 0, sizeof total);
    for (ptrdiff_t i = 0; i < out_height; i++) {
        ptrdiff_t top = i - pad_h;
        int rows = top >= 0 && top + 3 <= height;
        for (ptrdiff_t j = 0; j < out_width; j++) {
            ptrdiff_t left = j - pad_w;
            few v = load_few(grads + (i * out_width + j) * channels);
            if (rows && left >= 0 && left + 3 <= width) {
                const float *at = image + (top * width + left) * channels;
#pragma GCC unroll 9
                for (int tap = 0; tap < 9; tap++)
                    total[tap] += load_few(at + (tap / 3 * width + tap % 3) * channels) * v;
            } else {
#pragma GCC unroll 9
                for (int tap = 0; tap < 9; tap++) {
                    ptrdiff_t p = top + tap / 3, q = left + tap % 3;
                    if (p >= 0 && q >= 0 && p < height && q < width)
                        total[tap] += load_few(image + (p * width + q) * channels) * v;
                }
            }
        }
    }
#pragma GCC unroll 9
    for (int tap = 0; tap < 9; tap++) memcpy(sums + tap * channels, &total[tap], sizeof(few));
}

/* Depthwise convolution: for every row, channel and tap, the sum over positions of x(position + tap) * g(position).
   x: rows x height x width x channels, g: rows x out_height x out_width x channels, out: rows x kh x kw x channels. */
void saltflat_depthwise(
    const float *x, const float *g, float *out,
    ptrdiff_t rows, ptrdiff_t height, ptrdiff_t width, ptrdiff_t out_height, ptrdiff_t out_width,
    ptrdiff_t channels, ptrdiff_t kh, ptrdiff_t kw, ptrdiff_t stride_h, ptrdiff_t stride_w,
    ptrdiff_t pad_h, ptrdiff_t pad_w, ptrdiff_t dilation_h, ptrdiff_t dilation_w)
{
    for (ptrdiff_t row = 0; row < rows; row++) {
        const float *image = x + row * height * width * channels;
        const float *grads = g + row * out_height * out_width * channels;
        float *sums = out + row * kh * kw * channels;
        int plain = kh == 3 && kw == 3 && stride_h == 1 && stride_w == 1 && dilation_h == 1 && dilation_w == 1;
        for (ptrdiff_t c = 0; plain && c < channels / LANES * LANES; c += FEW)
            depthwise_3x3(
                image + c, grads + c, sums + c, height, width, out_height, out_width, channels, pad_h, pad_w);
        for (ptrdiff_t c = 0; !plain && c + LANES <= channels; c += LANES) {
            for (ptrdiff_t a = 0; a < kh; a++) {
                for (ptrdiff_t first = 0; first < kw; first += MOST_TAPS) {
                    ptrdiff_t taps = kw - first < MOST_TAPS ? kw - first : MOST_TAPS;
                    lanes total[MOST_TAPS];
                    memset(total, 0, sizeof total);
                    for (ptrdiff_t i = 0; i < out_height; i++) {
                        ptrdiff_t ii = i * stride_h + a * dilation_h - pad_h;
                        if (ii < 0 || ii >= height) continue;
                        const float *line = image + ii * width * channels + c;
                        const float *grad = grads + i * out_width * channels + c;
                        for (ptrdiff_t j = 0; j < out_width; j++) {
                            ptrdiff_t start = j * stride_w + first * dilation_w - pad_w;
                            lanes v = load(grad + j * channels);
                            if (taps == 3 && start >= 0 && start + 2 * dilation_w < width) {
                                const float *at = line + start * channels;
                                ptrdiff_t step = dilation_w * channels;
                                total[0] += load(at) * v;
                                total[1] += load(at + step) * v;
                                total[2] += load(at + 2 * step) * v;
                            } else {
                                for (ptrdiff_t b = 0; b < taps; b++) {
                                    ptrdiff_t jj = start + b * dilation_w;
                                    if (jj >= 0 && jj < width) total[b] += load(line + jj * channels) * v;
                                }
                            }
                        }
                    }
                    for (ptrdiff_t b = 0; b < taps; b++)
                        store(sums + (a * kw + first + b) * channels + c, total[b]);
                }
            }
        }
        for (ptrdiff_t c = channels - channels % LANES; c < channels; c++) {
            for (ptrdiff_t a = 0; a < kh; a++) {
                for (ptrdiff_t b = 0; b < kw; b++) {
                    double total = 0;
                    for (ptrdiff_t i = 0; i < out_height; i++) {
                        ptrdiff_t ii = i * stride_h + a * dilation_h - pad_h;
                        if (ii < 0 || ii >= height) continue;
                        for (ptrdiff_t j = 0; j < out_width; j++) {
                            ptrdiff_t jj = j * stride_w + b * dilation_w - pad_w;
                            if (jj >= 0 && jj < width)
                                total += (double)image[(ii * width + jj) * channels + c] * grads[(i * out_width + j) * channels + c];
                        }
                    }
                    sums[(a * kw + b) * channels + c] = (float)total;
                }
            }
        }
    }
}

/* Add sixteen sums in float to eight in double. */
static inline void fold(wide *totals, lanes sums)
{
    float part[LANES];
    memcpy(part, &sums, sizeof part);
    for (int lane = 0; lane < LANES; lane++) (*totals)[lane % 8] += part[lane];
}

/* For every row: the sum of its numbers, their product with the direction, and their squared length. Of these the mean
   is subtracted later, so they are added up in float over a few hundred numbers only, and then in double.
   x: units x channels x size, along: channels x size; each result: units x channels. */
void saltflat_moments(
    const float *x, const float *along, float *sum, float *product, float *squared,
    ptrdiff_t units, ptrdiff_t channels, ptrdiff_t size)
{
    for (ptrdiff_t row = 0; row < units * channels; row++) {
        const float *v = x + row * size, *u = along + row % channels * size;
        wide sums = {0}, products = {0}, squares = {0};
        ptrdiff_t i = 0;
        while (i + 2 * LANES <= size) {
            ptrdiff_t stop = i + SUMMED < size ? i + SUMMED : size;
            lanes s = {0}, p = {0}, q = {0}, s2 = {0}, p2 = {0}, q2 = {0};
            for (; i + 2 * LANES <= stop; i += 2 * LANES) {
                lanes a = load(v + i), b = load(v + i + LANES);
                s += a; p += a * load(u + i); q += a * a;
                s2 += b; p2 += b * load(u + i + LANES); q2 += b * b;
            }
            fold(&sums, s); fold(&sums, s2);
            fold(&products, p); fold(&products, p2);
            fold(&squares, q); fold(&squares, q2);
        }
        double total = 0, with = 0, length = 0;
        for (int lane = 0; lane < 8; lane++) { total += sums[lane]; with += products[lane]; length += squares[lane]; }
        for (; i < size; i++) { total += v[i]; with += (double)v[i] * u[i]; length += (double)v[i] * v[i]; }
        sum[row] = (float)total; product[row] = (float)with; squared[row] = (float)length;
    }
}

/* --- group normalisation, rows x positions x channels ------------------------------------------------- */

enum { BLOCK = 32 }; /* positions that are added up in float before they join a sum in double */

/* totals[c] = sum over positions of a(p, c), or of a(p, c) * (b(p, c) - centre[c]) where b is given. */
static void channel_sums(
    const float *restrict a, const float *restrict b, const float *restrict centre, double *restrict totals,
    float *restrict partial, ptrdiff_t positions, ptrdiff_t channels)
{
    for (ptrdiff_t c = 0; c < channels; c++) totals[c] = 0;
    for (ptrdiff_t start = 0; start < positions; start += BLOCK) {
        ptrdiff_t stop = start + BLOCK < positions ? start + BLOCK : positions;
        for (ptrdiff_t c = 0; c < channels; c++) partial[c] = 0;
        for (ptrdiff_t p = start; p < stop; p++) {
            const float *u = a + p * channels, *v = b ? b + p * channels : NULL;
            if (v)
                for (ptrdiff_t c = 0; c < channels; c++) partial[c] += u[c] * (v[c] - centre[c]);
            else
                for (ptrdiff_t c = 0; c < channels; c++) partial[c] += u[c];
        }
        for (ptrdiff_t c = 0; c < channels; c++) totals[c] += partial[c];
    }
}

static void squared_deviations(
    const float *restrict x, const float *restrict centre, double *restrict totals, float *restrict partial,
    ptrdiff_t positions, ptrdiff_t channels)
{
    for (ptrdiff_t c = 0; c < channels; c++) totals[c] = 0;
    for (ptrdiff_t start = 0; start < positions; start += BLOCK) {
        ptrdiff_t stop = start + BLOCK < positions ? start + BLOCK : positions;
        for (ptrdiff_t c = 0; c < channels; c++) partial[c] = 0;
        for (ptrdiff_t p = start; p < stop; p++) {
            const float *v = x + p * channels;
            for (ptrdiff_t c = 0; c < channels; c++) {
                float d = v[c] - centre[c];
                partial[c] += d * d;
            }
        }
        for (ptrdiff_t c = 0; c < channels; c++) totals[c] += partial[c];
    }
}

/* y = (x - mean) * rstd * weight + bias. mean, rstd: rows x groups. weight and bias may be NULL.
   scratch holds 3 * channels floats, totals as many doubles as channels. */
void saltflat_group_norm(
    const float *x, const float *weight, const float *bias, float *y, float *mean, float *rstd,
    float *scratch, double *totals,
    ptrdiff_t rows, ptrdiff_t positions, ptrdiff_t channels, ptrdiff_t groups, double eps)
{
    ptrdiff_t each = channels / groups;
    double count = (double)positions * (double)each;
    float *restrict centre = scratch, *restrict scale = scratch + channels, *restrict partial = scratch + 2 * channels;
    for (ptrdiff_t row = 0; row < rows; row++) {
        const float *in = x + row * positions * channels;
        float *out = y + row * positions * channels;
        channel_sums(in, NULL, NULL, totals, partial, positions, channels);
        for (ptrdiff_t k = 0; k < groups; k++) {
            double sum = 0;
            for (ptrdiff_t c = k * each; c < (k + 1) * each; c++) sum += totals[c];
            mean[row * groups + k] = (float)(sum / count);
            for (ptrdiff_t c = k * each; c < (k + 1) * each; c++) centre[c] = mean[row * groups + k];
        }
        squared_deviations(in, centre, totals, partial, positions, channels);
        for (ptrdiff_t k = 0; k < groups; k++) {
            double sum = 0;
            for (ptrdiff_t c = k * each; c < (k + 1) * each; c++) sum += totals[c];
            rstd[row * groups + k] = (float)(1.0 / sqrt(sum / count + eps));
            for (ptrdiff_t c = k * each; c < (k + 1) * each; c++)
                scale[c] = rstd[row * groups + k] * (weight ? weight[c] : 1.0f);
        }
        for (ptrdiff_t p = 0; p < positions; p++) {
            const float *restrict v = in + p * channels;
            float *restrict w = out + p * channels;
            if (bias)
                for (ptrdiff_t c = 0; c < channels; c++) w[c] = (v[c] - centre[c]) * scale[c] + bias[c];
            else
                for (ptrdiff_t c = 0; c < channels; c++) w[c] = (v[c] - centre[c]) * scale[c];
        }
    }
}

/* dx, and for each row the gradients of weight and bias (rows x channels). dx may be NULL.
   scratch holds 4 * channels floats, totals 2 * channels doubles. */
void saltflat_group_norm_backward(
    const float *g, const float *x, const float *weight, const float *mean, const float *rstd, float *dx,
    float *dweight, float *dbias, float *scratch, double *totals,
    ptrdiff_t rows, ptrdiff_t positions, ptrdiff_t channels, ptrdiff_t groups)
{
    ptrdiff_t each = channels / groups;
    double count = (double)positions * (double)each;
    float *restrict centre = scratch, *restrict partial = scratch + channels;
    float *restrict from_x = scratch + 2 * channels, *restrict shift = scratch + 3 * channels;
    double *products = totals, *sums = totals + channels;
    for (ptrdiff_t row = 0; row < rows; row++) {
        const float *grad = g + row * positions * channels, *in = x + row * positions * channels;
        float *restrict scale = dweight + row * channels; /* becomes what its name says at the end */
        for (ptrdiff_t c = 0; c < channels; c++) centre[c] = mean[row * groups + c / each];
        channel_sums(grad, in, centre, products, partial, positions, channels);
        channel_sums(grad, NULL, NULL, sums, partial, positions, channels);
        if (dx) {
            float *out = dx + row * positions * channels;
            for (ptrdiff_t k = 0; k < groups; k++) {
                double r = rstd[row * groups + k], a = 0, b = 0;
                for (ptrdiff_t c = k * each; c < (k + 1) * each; c++) {
                    double w = weight ? weight[c] : 1.0;
                    a += w * sums[c];
                    b += w * products[c] * r;
                    scale[c] = (float)(w * r);
                }
                for (ptrdiff_t c = k * each; c < (k + 1) * each; c++) {
                    from_x[c] = (float)(-r * r * b / count);
                    shift[c] = (float)(-r * a / count);
                }
            }
            for (ptrdiff_t p = 0; p < positions; p++) {
                const float *restrict u = grad + p * channels, *restrict v = in + p * channels;
                float *restrict w = out + p * channels;
                for (ptrdiff_t c = 0; c < channels; c++)
                    w[c] = scale[c] * u[c] + from_x[c] * (v[c] - centre[c]) + shift[c];
            }
        }
        for (ptrdiff_t c = 0; c < channels; c++) {
            dweight[row * channels + c] = (float)(products[c] * rstd[row * groups + c / each]);
            dbias[row * channels + c] = (float)sums[c];
        }
    }
}

/* --- max pooling, rows x height x width x channels ---------------------------------------------------- */

/* As wide as the processor: wider comparisons would be made number by number. */
typedef int marks __attribute__((vector_size(4 * FEW)));

#if defined(__AVX2__) && !defined(__AVX512F__) /* the compiler would take bytes one by one */
static inline marks widened(const unsigned char *from) {
    return (marks)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from));
}
static inline void narrowed(unsigned char *to, marks m) {
    __m256i wide = (__m256i)m;
    __m128i half = _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storel_epi64((__m128i *)to, _mm_packus_epi16(half, half));
}
#else
typedef unsigned char bytes __attribute__((vector_size(FEW)));
static inline marks widened(const unsigned char *from) {
    bytes b;
    memcpy(&b, from, sizeof b);
    return __builtin_convertvector(b, marks);
}
static inline void narrowed(unsigned char *to, marks m) {
    bytes b = __builtin_convertvector(m, bytes);
    memcpy(to, &b, sizeof b);
}
#endif

static inline few where(marks m, few a, few b) { return (few)((m & (marks)a) | (~m & (marks)b)); }

/* y: the largest number in each window, the first of equal ones, and NaN where there is one; taps: which it was. */
void saltflat_max_pool(
    const float *x, float *y, unsigned char *taps,
    ptrdiff_t rows, ptrdiff_t height, ptrdiff_t width, ptrdiff_t out_height, ptrdiff_t out_width, ptrdiff_t channels,
    ptrdiff_t kh, ptrdiff_t kw, ptrdiff_t stride_h, ptrdiff_t stride_w, ptrdiff_t pad_h, ptrdiff_t pad_w)
{
    for (ptrdiff_t place = 0; place < rows * out_height * out_width; place++) {
        ptrdiff_t top = place / out_width % out_height * stride_h - pad_h, left = place % out_width * stride_w - pad_w;
        const float *map = x + place / (out_height * out_width) * height * width * channels;
        ptrdiff_t first_a = top < 0 ? -top : 0, last_a = height - top < kh ? height - top : kh;
        ptrdiff_t first_b = left < 0 ? -left : 0, last_b = width - left < kw ? width - left : kw;
        float *best = y + place * channels;
        unsigned char *tap = taps + place * channels;
        ptrdiff_t c = 0;
        for (; c + FEW <= channels; c += FEW) {
            few most = load_few(map + ((top + first_a) * width + left + first_b) * channels + c);
            marks at = (marks){0} + (int)(first_a * kw + first_b);
            for (ptrdiff_t a = first_a; a < last_a; a++)
                for (ptrdiff_t b = first_b; b < last_b; b++) {
                    few v = load_few(map + ((top + a) * width + left + b) * channels + c);
                    marks m = (v > most) | (v != v);
                    most = where(m, v, most);
                    at = (m & (int)(a * kw + b)) | (~m & at);
                }
            memcpy(best + c, &most, sizeof most);
            narrowed(tap + c, at);
        }
        for (; c < channels; c++) {
            best[c] = map[((top + first_a) * width + left + first_b) * channels + c];
            tap[c] = (unsigned char)(first_a * kw + first_b);
            for (ptrdiff_t a = first_a; a < last_a; a++)
                for (ptrdiff_t b = first_b; b < last_b; b++) {
                    float v = map[((top + a) * width + left + b) * channels + c];
                    if (v > best[c] || v != v) { best[c] = v; tap[c] = (unsigned char)(a * kw + b); }
                }
        }
    }
}

/* The same for a place that lies in three windows each way, as most do with a 3x3 window and stride 1. */
static void nine_windows(
    const float *g, const unsigned char *taps, float *dx, ptrdiff_t channels, ptrdiff_t first, ptrdiff_t out_width,
    int own, int down, int right)
{
    for (ptrdiff_t c = 0; c + FEW <= channels; c += FEW) {
        few total[3] = {{0}, {0}, {0}}; /* three sums: none waits for the other */
#pragma GCC unroll 3
        for (int p = 0; p < 3; p++)
#pragma GCC unroll 3
            for (int q = 0; q < 3; q++) {
                ptrdiff_t at = (first + p * out_width + q) * channels + c;
                marks m = widened(taps + at) == own - p * down - q * right;
                total[q] += (few)(m & (marks)load_few(g + at));
            }
        few sum = total[0] + total[1] + total[2];
        memcpy(dx + c, &sum, sizeof sum);
    }
}

/* dx: every place of the input asks the windows it lies in whether they chose it. Nothing is written twice. */
void saltflat_max_pool_backward(
    const float *g, const unsigned char *taps, float *dx,
    ptrdiff_t rows, ptrdiff_t height, ptrdiff_t width, ptrdiff_t out_height, ptrdiff_t out_width, ptrdiff_t channels,
    ptrdiff_t kh, ptrdiff_t kw, ptrdiff_t stride_h, ptrdiff_t stride_w, ptrdiff_t pad_h, ptrdiff_t pad_w)
{
    for (ptrdiff_t place = 0; place < rows * height * width; place++) {
        ptrdiff_t i = place / width % height + pad_h, j = place % width + pad_w, c = 0;
        ptrdiff_t row = place / (height * width) * out_height * out_width;
        /* window p covers i if p * stride <= i < p * stride + kh */
        ptrdiff_t first_p = i < kh ? 0 : (i - kh) / stride_h + 1, last_p = i / stride_h;
        ptrdiff_t first_q = j < kw ? 0 : (j - kw) / stride_w + 1, last_q = j / stride_w;
        if (last_p >= out_height) last_p = out_height - 1;
        if (last_q >= out_width) last_q = out_width - 1;
        if (last_p - first_p == 2 && last_q - first_q == 2) {
            nine_windows(g, taps, dx + place * channels, channels, row + first_p * out_width + first_q, out_width,
                         (int)((i - first_p * stride_h) * kw + j - first_q * stride_w), (int)(stride_h * kw),
                         (int)stride_w);
            c = channels / FEW * FEW;
        }
        for (; c + FEW <= channels; c += FEW) {
            few total = {0};
            for (ptrdiff_t p = first_p; p <= last_p; p++)
                for (ptrdiff_t q = first_q; q <= last_q; q++) {
                    ptrdiff_t at = (row + p * out_width + q) * channels + c;
                    int own = (int)((i - p * stride_h) * kw + j - q * stride_w);
                    marks m = widened(taps + at) == own;
                    total += (few)(m & (marks)load_few(g + at));
                }
            memcpy(dx + place * channels + c, &total, sizeof total);
        }
        for (; c < channels; c++) {
            float total = 0;
            for (ptrdiff_t p = first_p; p <= last_p; p++)
                for (ptrdiff_t q = first_q; q <= last_q; q++) {
                    ptrdiff_t at = (row + p * out_width + q) * channels + c;
                    if (taps[at] == (i - p * stride_h) * kw + j - q * stride_w) total += g[at];
                }
            dx[place * channels + c] = total;
        }
    }
}
