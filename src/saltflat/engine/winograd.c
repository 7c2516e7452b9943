/* Convolutions by 3x3 kernels, stride 1, after Winograd: outputs two by two, with 16 multiplications where the
   definition takes 36 (Winograd 1980; Lavin & Gray 2016).

   A 4x4 tile of the input and the kernel are each written as 16 numbers a channel, so that the output's 2x2 tile is a
   sum over channels of 16 ordinary products, one a point. The gradient of the kernel is the transposed statement. So
   everything becomes 16 matrix products, for which there is one small product here, `multiply`: it keeps its sums in
   registers, and reads panels of 16 channels as the transformations have laid them.

   Float32, maps contiguous with the channels innermost, channels in multiples of 16. */

#include "vectors.h"
#include <stddef.h>

enum { PANEL = 16, POINTS = 16 };
/* Of a product that stays in registers. */
enum { VECTORS = PANEL / WIDTH, COLUMNS = 2, PANELS = COLUMNS / VECTORS, MOST_ROWS = WIDTH == 16 ? 8 : 6 };

/* A product of matrices. Right and result: panels of 16 columns. Left: rows x depth, in chunks of depth; either panels
   of 16 rows, or ("tall") panels of 16 in depth. */
typedef struct {
    ptrdiff_t chunks, length;            /* depth = chunks * length */
    ptrdiff_t left_chunk;                /* from one chunk to the next */
    ptrdiff_t right_panel, result_panel; /* from one panel to the next */
} layout;

static inline __attribute__((always_inline)) void some_rows(
    const int rows, const int columns, const int tall, const float *left, const float *right, float *result,
    const layout *at, int add)
{
    const ptrdiff_t left_row = tall ? PANEL : 1, left_depth = tall ? 1 : PANEL;
    const ptrdiff_t length = tall ? PANEL : at->length;
    vec sums[8][COLUMNS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < columns; v++) {
            float *to = result + v / VECTORS * at->result_panel + r * PANEL + v % VECTORS * WIDTH;
            sums[r][v] = add ? get(to) : (vec){0};
        }
    const float *other = right + at->right_panel;
    for (ptrdiff_t chunk = 0; chunk < at->chunks; chunk++) {
        const float *a = left + chunk * at->left_chunk;
#pragma GCC unroll 4
        for (ptrdiff_t k = 0; k < length; k++) {
            vec b[COLUMNS];
#pragma GCC unroll 2
            for (int v = 0; v < columns; v++) b[v] = get((v < VECTORS ? right : other) + v % VECTORS * WIDTH);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
                for (int v = 0; v < columns; v++) sums[r][v] += a[r * left_row] * b[v];
            }
            a += left_depth;
            right += PANEL;
            other += PANEL;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < columns; v++)
            put(result + v / VECTORS * at->result_panel + r * PANEL + v % VECTORS * WIDTH, sums[r][v]);
}

/* A function each, so that nothing else asks for registers. */
#define SOME_ROWS(rows, columns, tall)                                                                            \
    static __attribute__((noinline)) void rows_##rows##_##columns##_##tall(                                       \
        const float *left, const float *right, float *result, const layout *at, int add)                          \
    {                                                                                                             \
        some_rows(rows, columns, tall, left, right, result, at, add);                                             \
    }
#define ROWS(rows) SOME_ROWS(rows, 1, 0) SOME_ROWS(rows, 2, 0) SOME_ROWS(rows, 1, 1) SOME_ROWS(rows, 2, 1)
ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8)

typedef void (*product)(const float *, const float *, float *, const layout *, int);
#define ALL(columns, tall)                                                                                        \
    {rows_1_##columns##_##tall, rows_2_##columns##_##tall, rows_3_##columns##_##tall, rows_4_##columns##_##tall,  \
     rows_5_##columns##_##tall, rows_6_##columns##_##tall, rows_7_##columns##_##tall, rows_8_##columns##_##tall}
static const product products[2][2][8] = {{ALL(1, 0), ALL(1, 1)}, {ALL(2, 0), ALL(2, 1)}};

static void multiply(
    ptrdiff_t rows, ptrdiff_t panels, int tall, const float *left, const float *right, float *result,
    const layout *at, int add)
{
    for (ptrdiff_t panel = 0; panel < panels; panel += PANELS) {
        int columns = panel + PANELS <= panels ? COLUMNS : VECTORS;
        const float *a = left, *b = right + panel * at->right_panel;
        float *to = result + panel * at->result_panel;
        for (ptrdiff_t rest = rows; rest > 0;) {
            /* the last ones in two shares rather than in a whole and a rest */
            ptrdiff_t some = rest <= MOST_ROWS ? rest : rest < 2 * MOST_ROWS ? (rest + 1) / 2 : MOST_ROWS;
            products[columns - 1][tall][some - 1](a, b, to, at, add);
            a += some * (tall ? PANEL : 1);
            to += some * PANEL;
            rest -= some;
        }
    }
}

/* From one point to the next, for so many numbers at each: an odd number of cache lines, so that the sixteen points of a
   tile, which are used together, do not fall on the same places of the cache. `winograd.py` reckons with the same. */
static inline ptrdiff_t apart(ptrdiff_t numbers) { return (numbers / 16 | 1) * 16; }

/* Where the tiles of rows x tiles_h x tiles_w lie: a block of them has its numbers side by side. */
typedef struct {
    ptrdiff_t height, width, channels; /* of a map */
    ptrdiff_t tiles_h, tiles_w;
} maps;

/* 4x4 tiles of the input, two apart, from -pad on: points x panels x block x 16. Outside a map there are zeros. */
static void input_points(
    const float *x, float *points, maps of, ptrdiff_t pad, ptrdiff_t first, ptrdiff_t count, ptrdiff_t block)
{
    ptrdiff_t step = apart(of.channels * block);
    for (ptrdiff_t t = 0; t < count; t++) {
        ptrdiff_t tile = first + t, j = tile % of.tiles_w, i = tile / of.tiles_w % of.tiles_h;
        const float *map = x + tile / (of.tiles_w * of.tiles_h) * of.height * of.width * of.channels;
        ptrdiff_t top = 2 * i - pad, left = 2 * j - pad;
        int inside = top >= 0 && left >= 0 && top + 4 <= of.height && left + 4 <= of.width;
        for (ptrdiff_t c = 0; c < of.channels; c += WIDTH) {
            vec d[4][4], e[4][4];
#pragma GCC unroll 4
            for (int a = 0; a < 4; a++)
#pragma GCC unroll 4
                for (int b = 0; b < 4; b++) {
                    ptrdiff_t p = top + a, q = left + b;
                    if (inside || (p >= 0 && q >= 0 && p < of.height && q < of.width))
                        d[a][b] = get(map + (p * of.width + q) * of.channels + c);
                    else
                        d[a][b] = (vec){0};
                }
#pragma GCC unroll 4
            for (int b = 0; b < 4; b++) {
                e[0][b] = d[0][b] - d[2][b];
                e[1][b] = d[1][b] + d[2][b];
                e[2][b] = d[2][b] - d[1][b];
                e[3][b] = d[1][b] - d[3][b];
            }
            float *to = points + (c / PANEL * block + t) * PANEL + c % PANEL;
#pragma GCC unroll 4
            for (int a = 0; a < 4; a++) {
                put(to + (4 * a + 0) * step, e[a][0] - e[a][2]);
                put(to + (4 * a + 1) * step, e[a][1] + e[a][2]);
                put(to + (4 * a + 2) * step, e[a][2] - e[a][1]);
                put(to + (4 * a + 3) * step, e[a][1] - e[a][3]);
            }
        }
    }
}

/* 2x2 tiles of the output's gradient, times its row's factor where there are factors. */
static void grad_points(
    const float *g, const float *factors, float *points, maps of, ptrdiff_t first, ptrdiff_t count, ptrdiff_t block)
{
    ptrdiff_t step = apart(of.channels * block);
    for (ptrdiff_t t = 0; t < count; t++) {
        ptrdiff_t tile = first + t, j = tile % of.tiles_w, i = tile / of.tiles_w % of.tiles_h;
        ptrdiff_t row = tile / (of.tiles_w * of.tiles_h);
        const float *at = g + ((row * of.height + 2 * i) * of.width + 2 * j) * of.channels;
        float factor = factors ? factors[row] : 1.0f;
        int below = 2 * i + 1 < of.height, right = 2 * j + 1 < of.width;
        for (ptrdiff_t c = 0; c < of.channels; c += WIDTH) {
            vec zero = {0}, e[4][2];
            vec g00 = get(at + c) * factor;
            vec g01 = right ? get(at + of.channels + c) * factor : zero;
            vec g10 = below ? get(at + of.width * of.channels + c) * factor : zero;
            vec g11 = below && right ? get(at + (of.width + 1) * of.channels + c) * factor : zero;
            e[0][0] = g00; e[0][1] = g01;
            e[1][0] = g00 + g10; e[1][1] = g01 + g11;
            e[2][0] = g00 - g10; e[2][1] = g01 - g11;
            e[3][0] = -g10; e[3][1] = -g11;
            float *to = points + (c / PANEL * block + t) * PANEL + c % PANEL;
#pragma GCC unroll 4
            for (int a = 0; a < 4; a++) {
                put(to + (4 * a + 0) * step, e[a][0]);
                put(to + (4 * a + 1) * step, e[a][0] + e[a][1]);
                put(to + (4 * a + 2) * step, e[a][0] - e[a][1]);
                put(to + (4 * a + 3) * step, -e[a][1]);
            }
        }
    }
}

/* From points x panels x block x 16 to the output's 2x2 tiles; bias may be NULL. */
static void outputs_of(
    const float *points, const float *bias, float *y, maps of, ptrdiff_t first, ptrdiff_t count, ptrdiff_t block)
{
    ptrdiff_t step = apart(of.channels * block);
    for (ptrdiff_t t = 0; t < count; t++) {
        ptrdiff_t tile = first + t, j = tile % of.tiles_w, i = tile / of.tiles_w % of.tiles_h;
        ptrdiff_t row = tile / (of.tiles_w * of.tiles_h);
        float *at = y + ((row * of.height + 2 * i) * of.width + 2 * j) * of.channels;
        int below = 2 * i + 1 < of.height, right = 2 * j + 1 < of.width;
        for (ptrdiff_t c = 0; c < of.channels; c += WIDTH) {
            const float *from = points + (c / PANEL * block + t) * PANEL + c % PANEL;
            vec shift = bias ? get(bias + c) : (vec){0}, e[4][2];
#pragma GCC unroll 4
            for (int a = 0; a < 4; a++) {
                vec m0 = get(from + 4 * a * step), m1 = get(from + (4 * a + 1) * step);
                vec m2 = get(from + (4 * a + 2) * step), m3 = get(from + (4 * a + 3) * step);
                e[a][0] = m0 + m1 + m2;
                e[a][1] = m1 - m2 - m3;
            }
            put(at + c, e[0][0] + e[1][0] + e[2][0] + shift);
            if (right) put(at + of.channels + c, e[0][1] + e[1][1] + e[2][1] + shift);
            if (below) put(at + of.width * of.channels + c, e[1][0] - e[2][0] - e[3][0] + shift);
            if (below && right) put(at + (of.width + 1) * of.channels + c, e[1][1] - e[2][1] - e[3][1] + shift);
        }
    }
}

/* The points of a kernel, outputs x 3 x 3 x inputs: points x panels of outputs x inputs x 16; or, `back` to the inputs,
   of the kernel turned around: points x panels of inputs x outputs x 16. */
void saltflat_winograd_kernel(const float *kernel, float *points, ptrdiff_t outputs, ptrdiff_t inputs, ptrdiff_t back)
{
    ptrdiff_t step = apart(outputs * inputs);
    for (ptrdiff_t o = 0; o < outputs; o++)
        for (ptrdiff_t i = 0; i < inputs; i++) {
            float w[3][3], e[4][3];
#pragma GCC unroll 4
            for (int a = 0; a < 3; a++)
#pragma GCC unroll 4
                for (int b = 0; b < 3; b++) {
                    int tap = back ? 8 - 3 * a - b : 3 * a + b;
                    w[a][b] = kernel[(o * 9 + tap) * inputs + i];
                }
#pragma GCC unroll 4
            for (int b = 0; b < 3; b++) {
                float outer = 0.5f * (w[0][b] + w[2][b]), inner = 0.5f * w[1][b];
                e[0][b] = w[0][b]; e[1][b] = outer + inner; e[2][b] = outer - inner; e[3][b] = w[2][b];
            }
            float *to = back ? points + (i / PANEL * outputs + o) * PANEL + i % PANEL
                             : points + (o / PANEL * inputs + i) * PANEL + o % PANEL;
#pragma GCC unroll 4
            for (int a = 0; a < 4; a++) {
                float outer = 0.5f * (e[a][0] + e[a][2]), inner = 0.5f * e[a][1];
                to[(4 * a + 0) * step] = e[a][0];
                to[(4 * a + 1) * step] = outer + inner;
                to[(4 * a + 2) * step] = outer - inner;
                to[(4 * a + 3) * step] = e[a][2];
            }
        }
}

/* y = x * kernel + bias. scratch holds the points of a block of inputs and of outputs. */
void saltflat_winograd(
    const float *x, const float *kernel, const float *bias, float *y, float *scratch,
    ptrdiff_t rows, ptrdiff_t height, ptrdiff_t width, ptrdiff_t inputs, ptrdiff_t outputs, ptrdiff_t pad,
    ptrdiff_t block)
{
    ptrdiff_t out_h = height + 2 * pad - 2, out_w = width + 2 * pad - 2;
    ptrdiff_t tiles_h = (out_h + 1) / 2, tiles_w = (out_w + 1) / 2, tiles = rows * tiles_h * tiles_w;
    maps from = {height, width, inputs, tiles_h, tiles_w}, to = {out_h, out_w, outputs, tiles_h, tiles_w};
    float *in = scratch, *out = scratch + POINTS * apart(block * inputs);
    layout at = {inputs / PANEL, PANEL, block * PANEL, inputs * PANEL, block * PANEL};
    for (ptrdiff_t first = 0; first < tiles; first += block) {
        ptrdiff_t count = tiles - first < block ? tiles - first : block;
        input_points(x, in, from, pad, first, count, block);
        for (int p = 0; p < POINTS; p++)
            multiply(
                count, outputs / PANEL, 1, in + p * apart(block * inputs), kernel + p * apart(inputs * outputs),
                out + p * apart(block * outputs), &at, 0);
        outputs_of(out, bias, y, to, first, count, block);
    }
}

/* From points x panels of inputs x outputs x 16 to outputs x 3 x 3 x inputs; returns the squared length. */
static double kernel_of(
    const float *points, float *kernel, ptrdiff_t outputs, ptrdiff_t inputs, ptrdiff_t point, ptrdiff_t panel)
{
    double squared = 0;
    for (ptrdiff_t o = 0; o < outputs; o++) {
        vec length = {0};
        for (ptrdiff_t i = 0; i < inputs; i += WIDTH) {
            const float *from = points + i / PANEL * panel + o * PANEL + i % PANEL;
            float *to = kernel + o * 9 * inputs + i;
            vec e[4][3];
#pragma GCC unroll 4
            for (int a = 0; a < 4; a++) {
                vec m0 = get(from + 4 * a * point), m1 = get(from + (4 * a + 1) * point);
                vec m2 = get(from + (4 * a + 2) * point), m3 = get(from + (4 * a + 3) * point);
                vec half = 0.5f * (m1 + m2);
                e[a][0] = m0 + half; e[a][1] = 0.5f * (m1 - m2); e[a][2] = half + m3;
            }
#pragma GCC unroll 4
            for (int b = 0; b < 3; b++) {
                vec half = 0.5f * (e[1][b] + e[2][b]);
                vec w0 = e[0][b] + half, w1 = 0.5f * (e[1][b] - e[2][b]), w2 = half + e[3][b];
                put(to + b * inputs, w0);
                put(to + (3 + b) * inputs, w1);
                put(to + (6 + b) * inputs, w2);
                length += w0 * w0 + w1 * w1 + w2 * w2;
            }
        }
        for (int lane = 0; lane < WIDTH; lane++) squared += length[lane];
    }
    return squared;
}

/* The gradients of the kernel. With `squared`: of each row, rows x outputs x 3 x 3 x inputs, and their squared lengths;
   without: their sum, each row times its factor. scratch holds the points of a block of inputs and of gradients, and
   those of a kernel. */
void saltflat_winograd_gradients(
    const float *x, const float *g, const float *factors, float *grads, float *squared, float *scratch,
    ptrdiff_t rows, ptrdiff_t height, ptrdiff_t width, ptrdiff_t inputs, ptrdiff_t outputs, ptrdiff_t pad,
    ptrdiff_t block)
{
    ptrdiff_t out_h = height + 2 * pad - 2, out_w = width + 2 * pad - 2;
    ptrdiff_t tiles_h = (out_h + 1) / 2, tiles_w = (out_w + 1) / 2;
    ptrdiff_t each = squared ? tiles_h * tiles_w : rows * tiles_h * tiles_w;
    maps of_x = {height, width, inputs, tiles_h, tiles_w}, of_g = {out_h, out_w, outputs, tiles_h, tiles_w};
    float *in = scratch, *out = in + POINTS * apart(block * inputs), *sums = out + POINTS * apart(block * outputs);
    /* Where one block is a whole row, a few outputs are taken to their end at a time, while they are in cache. */
    ptrdiff_t share = outputs;
    if (each <= block)
        while (share % (2 * PANEL) == 0 && POINTS * share * inputs > 65536) share /= 2;
    ptrdiff_t panel = share * PANEL, point = apart(share * inputs);
    for (ptrdiff_t row = 0; row < (squared ? rows : 1); row++) {
        double length = 0;
        float *result = grads + row * outputs * 9 * inputs;
        for (ptrdiff_t first = 0; first < each; first += block) {
            ptrdiff_t count = each - first < block ? each - first : block;
            layout at = {1, count, 0, block * PANEL, panel};
            input_points(x, in, of_x, pad, row * each + first, count, block);
            grad_points(g, factors, out, of_g, row * each + first, count, block);
            for (ptrdiff_t begin = 0; begin < outputs; begin += share) {
                for (int p = 0; p < POINTS; p++)
                    for (ptrdiff_t o = 0; o < share; o += PANEL)
                        multiply(
                            PANEL, inputs / PANEL, 0, out + p * apart(block * outputs) + (begin + o) * block,
                            in + p * apart(block * inputs), sums + p * point + o * PANEL, &at, first > 0);
                if (first + count == each)
                    length += kernel_of(sums, result + begin * 9 * inputs, share, inputs, point, panel);
            }
        }
        if (squared) squared[row] = (float)length;
    }
}
