/* The loops of the engine for which torch has no fast operation. Plain C; the compiler makes it wide.

   Everything is float32 and contiguous, with the channels innermost. Sums are kept in sixteen lanes and a few
   accumulators, so their rounding is smaller than that of one running sum. */

#include <math.h>
#include <stddef.h>
#include <string.h>

typedef float lanes __attribute__((vector_size(64)));
enum { LANES = 16, MOST_TAPS = 8 };

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

/* For every row: the sum of its numbers, their product with the direction, and their squared length.
   x: units x channels x size, along: channels x size; each result: units x channels. */
void saltflat_moments(
    const float *x, const float *along, float *sum, float *product, float *squared,
    ptrdiff_t units, ptrdiff_t channels, ptrdiff_t size)
{
    for (ptrdiff_t row = 0; row < units * channels; row++) {
        const float *v = x + row * size, *u = along + row % channels * size;
        lanes s = {0}, p = {0}, q = {0}, s2 = {0}, p2 = {0}, q2 = {0};
        ptrdiff_t i = 0;
        for (; i + 2 * LANES <= size; i += 2 * LANES) {
            lanes a = load(v + i), b = load(v + i + LANES);
            s += a; p += a * load(u + i); q += a * a;
            s2 += b; p2 += b * load(u + i + LANES); q2 += b * b;
        }
        s += s2; p += p2; q += q2;
        double total = 0, with = 0, length = 0;
        for (int lane = 0; lane < LANES; lane++) { total += s[lane]; with += p[lane]; length += q[lane]; }
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
