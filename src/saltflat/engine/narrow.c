/* Rows of many features that meet a matrix with few outputs: a linear layer on fixed features. Reading the rows is
   most of the work, so each loop reads them once, and the threads that torch keeps ready share them by rows.

   Float32, contiguous. */

#include "threads.h"
#include "vectors.h"
#include <math.h>

enum {
    CHUNK = 1024, /* features of some rows and of all outputs that stay in the first cache */
    ROWS = 2,     /* that meet the outputs at the same time */
    OUTPUTS = 5,  /* that they meet: ROWS * OUTPUTS sums stay in registers */
    BLOCK = 16,   /* rows that are added up before their sum is written */
    TOGETHER = 8, /* groups that are normalised in step */
};

/* --- products ------------------------------------------------------------------------------------------ */

typedef struct {
    const float *x, *weight, *bias;
    float *y;
    double *squares;
    ptrdiff_t wide, few;
} layer;

/* Add to y what features from..to of some rows give. */
static inline __attribute__((always_inline)) void meet(
    const layer *at, ptrdiff_t row, const int rows, ptrdiff_t output, const int outputs, ptrdiff_t from, ptrdiff_t to)
{
    vec sums[ROWS][OUTPUTS];
    memset(sums, 0, sizeof sums);
    const float *x = at->x + row * at->wide, *w = at->weight + output * at->wide;
    ptrdiff_t j = from;
    for (; j + WIDTH <= to; j += WIDTH) {
        vec v[ROWS];
#pragma GCC unroll 2
        for (int r = 0; r < rows; r++) v[r] = get(x + r * at->wide + j);
#pragma GCC unroll 5
        for (int k = 0; k < outputs; k++) {
            vec u = in_register(get(w + k * at->wide + j));
#pragma GCC unroll 2
            for (int r = 0; r < rows; r++) sums[r][k] += v[r] * u;
        }
    }
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < outputs; k++) {
            float sum = total(sums[r][k]);
            for (ptrdiff_t i = j; i < to; i++) sum += x[r * at->wide + i] * w[k * at->wide + i];
            at->y[(row + r) * at->few + output + k] += sum;
        }
}

static void meet_any(
    const layer *at, ptrdiff_t row, int rows, ptrdiff_t output, ptrdiff_t outputs, ptrdiff_t from, ptrdiff_t to)
{
    if (rows == ROWS && outputs == OUTPUTS) meet(at, row, ROWS, output, OUTPUTS, from, to);
    else
        for (ptrdiff_t r = row; r < row + rows; r++)
            for (ptrdiff_t k = output; k < output + outputs; k++) meet(at, r, 1, k, 1, from, to);
}

static float squared_length(const float *x, ptrdiff_t count) {
    vec sums[4];
    memset(sums, 0, sizeof sums);
    ptrdiff_t j = 0;
    for (; j + 4 * WIDTH <= count; j += 4 * WIDTH)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            vec v = get(x + j + i * WIDTH);
            sums[i] += v * v;
        }
    float sum = total(sums[0] + sums[1] + (sums[2] + sums[3]));
    for (; j < count; j++) sum += x[j] * x[j];
    return sum;
}

static void outputs_of_rows(const void *task, ptrdiff_t first, ptrdiff_t last, int share) {
    const layer *at = task;
    (void)share;
    for (ptrdiff_t row = first; row < last; row++) {
        for (ptrdiff_t k = 0; k < at->few; k++) at->y[row * at->few + k] = at->bias ? at->bias[k] : 0;
        at->squares[row] = 0;
    }
    for (ptrdiff_t from = 0; from < at->wide; from += CHUNK) { /* a chunk of the weight meets all rows */
        ptrdiff_t to = from + CHUNK < at->wide ? from + CHUNK : at->wide;
        for (ptrdiff_t row = first; row < last; row += ROWS) {
            int rows = last - row < ROWS ? (int)(last - row) : ROWS;
            for (ptrdiff_t k = 0; k < at->few; k += OUTPUTS)
                meet_any(at, row, rows, k, at->few - k < OUTPUTS ? at->few - k : OUTPUTS, from, to);
            for (int r = 0; r < rows; r++)
                at->squares[row + r] += squared_length(at->x + (row + r) * at->wide + from, to - from);
        }
    }
}

/* y = x @ weight.T + bias, and the squared length of each row of x. bias may be NULL.
   x: rows x wide, weight: few x wide, y: rows x few, squares: rows. */
void saltflat_few_outputs(
    const float *x, const float *weight, const float *bias, float *y, double *squares,
    ptrdiff_t rows, ptrdiff_t wide, ptrdiff_t few, ptrdiff_t shares)
{
    layer at = {x, weight, bias, y, squares, wide, few};
    saltflat_dealt_out(outputs_of_rows, &at, rows, shares);
}

typedef struct {
    const float *left, *factors, *x;
    float *sums;
    ptrdiff_t wide, few;
} products;

/* Add to the sums, for features from j on, what some rows give with some outputs. */
static inline __attribute__((always_inline)) void add_products(
    const products *at, float *to, ptrdiff_t row, ptrdiff_t rows, const float *scaled, ptrdiff_t output,
    const int outputs, ptrdiff_t j)
{
    vec sums[OUTPUTS][2];
#pragma GCC unroll 5
    for (int k = 0; k < outputs; k++) {
        sums[k][0] = get(to + (output + k) * at->wide + j);
        sums[k][1] = get(to + (output + k) * at->wide + j + WIDTH);
    }
    for (ptrdiff_t r = 0; r < rows; r++) {
        const float *x = at->x + (row + r) * at->wide + j;
        vec a = get(x), b = get(x + WIDTH);
#pragma GCC unroll 5
        for (int k = 0; k < outputs; k++) {
            float s = scaled[r * at->few + output + k];
            sums[k][0] += a * s;
            sums[k][1] += b * s;
        }
    }
#pragma GCC unroll 5
    for (int k = 0; k < outputs; k++) {
        put(to + (output + k) * at->wide + j, sums[k][0]);
        put(to + (output + k) * at->wide + j + WIDTH, sums[k][1]);
    }
}

static void products_of_rows(const void *task, ptrdiff_t first, ptrdiff_t last, int share) {
    const products *at = task;
    float *to = at->sums + share * at->few * at->wide;
    memset(to, 0, sizeof(float) * (size_t)(at->few * at->wide));
    float scaled[BLOCK * at->few];
    for (ptrdiff_t row = first; row < last; row += BLOCK) {
        ptrdiff_t rows = last - row < BLOCK ? last - row : BLOCK, j = 0;
        for (ptrdiff_t r = 0; r < rows; r++)
            for (ptrdiff_t k = 0; k < at->few; k++)
                scaled[r * at->few + k] = at->left[(row + r) * at->few + k] * at->factors[row + r];
        for (; j + 2 * WIDTH <= at->wide; j += 2 * WIDTH) {
            ptrdiff_t k = 0;
            for (; k + OUTPUTS <= at->few; k += OUTPUTS) add_products(at, to, row, rows, scaled, k, OUTPUTS, j);
            for (; k < at->few; k++) add_products(at, to, row, rows, scaled, k, 1, j);
        }
        for (; j < at->wide; j++)
            for (ptrdiff_t k = 0; k < at->few; k++) {
                float sum = to[k * at->wide + j];
                for (ptrdiff_t r = 0; r < rows; r++) sum += at->x[(row + r) * at->wide + j] * scaled[r * at->few + k];
                to[k * at->wide + j] = sum;
            }
    }
}

/* sums[0] = left.T @ (factors * x), row by row; the other shares are scratch.
   left: rows x few, factors: rows, x: rows x wide, sums: shares x few x wide. */
void saltflat_few_sums(
    const float *left, const float *factors, const float *x, float *sums,
    ptrdiff_t rows, ptrdiff_t wide, ptrdiff_t few, ptrdiff_t shares)
{
    products at = {left, factors, x, sums, wide, few};
    saltflat_dealt_out(products_of_rows, &at, rows, shares);
    for (ptrdiff_t share = 1; share < shares; share++)
        for (ptrdiff_t i = 0; i < few * wide; i++) sums[i] += sums[share * few * wide + i];
}

/* --- group normalisation of features as they lie: rows x channels x positions --------------------------- */

typedef struct {
    const float *x, *weight, *bias;
    float *y;
    ptrdiff_t groups, each, positions;
    double eps;
} norms;

static double sum_of(const float *x, ptrdiff_t count) {
    vec sums[4];
    memset(sums, 0, sizeof sums);
    ptrdiff_t j = 0;
    for (; j + 4 * WIDTH <= count; j += 4 * WIDTH)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) sums[i] += get(x + j + i * WIDTH);
    for (; j + WIDTH <= count; j += WIDTH) sums[0] += get(x + j);
    float rest = 0;
    for (; j < count; j++) rest += x[j];
    return (double)total(sums[0] + sums[1] + (sums[2] + sums[3])) + rest;
}

static double spread_of(const float *x, ptrdiff_t count, float centre) {
    vec sums[4];
    memset(sums, 0, sizeof sums);
    ptrdiff_t j = 0;
    for (; j + 4 * WIDTH <= count; j += 4 * WIDTH)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            vec v = get(x + j + i * WIDTH) - centre;
            sums[i] += v * v;
        }
    for (; j + WIDTH <= count; j += WIDTH) {
        vec v = get(x + j) - centre;
        sums[0] += v * v;
    }
    float rest = 0;
    for (; j < count; j++) rest += (x[j] - centre) * (x[j] - centre);
    return (double)total(sums[0] + sums[1] + (sums[2] + sums[3])) + rest;
}

static void normalised_rows(const void *task, ptrdiff_t first, ptrdiff_t last, int share) {
    const norms *at = task;
    (void)share;
    ptrdiff_t size = at->each * at->positions, end = last * at->groups;
    /* Some groups at a time, step by step: the steps of one group wait for one another, those of several do not. */
    for (ptrdiff_t start = first * at->groups; start < end; start += TOGETHER) {
        int many = end - start < TOGETHER ? (int)(end - start) : TOGETHER;
        float centre[TOGETHER], scale[TOGETHER];
        for (int i = 0; i < many; i++) centre[i] = (float)(sum_of(at->x + (start + i) * size, size) / (double)size);
        for (int i = 0; i < many; i++)
            scale[i] = (float)(1.0 / sqrt(spread_of(at->x + (start + i) * size, size, centre[i]) / (double)size + at->eps));
        for (int i = 0; i < many; i++) {
            const float *restrict x = at->x + (start + i) * size;
            float *restrict y = at->y + (start + i) * size;
            const float mean = centre[i], by = scale[i];
            if (!at->weight && !at->bias) {
                for (ptrdiff_t j = 0; j < size; j++) y[j] = (x[j] - mean) * by;
                continue;
            }
            for (ptrdiff_t c = 0; c < at->each; c++) {
                ptrdiff_t channel = (start + i) % at->groups * at->each + c, from = c * at->positions;
                float times = by * (at->weight ? at->weight[channel] : 1.0f), plus = at->bias ? at->bias[channel] : 0.0f;
                for (ptrdiff_t j = from; j < from + at->positions; j++) y[j] = (x[j] - mean) * times + plus;
            }
        }
    }
}

/* y = (x - mean) / sqrt(variance + eps) * weight + bias, group by group. weight and bias may be NULL. */
void saltflat_group_norm_by_rows(
    const float *x, const float *weight, const float *bias, float *y,
    ptrdiff_t rows, ptrdiff_t channels, ptrdiff_t positions, ptrdiff_t groups, ptrdiff_t shares, double eps)
{
    norms at = {x, weight, bias, y, groups, channels / groups, positions, eps};
    saltflat_dealt_out(normalised_rows, &at, rows, shares);
}
