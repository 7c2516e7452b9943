/* The norms of sums of outer products, from the Gram matrices of their two sides: `saltflat.engine.ghost` explains.
   Both matrices are symmetric, so half of each is enough; and neither is ever written down: a tile of one meets the
   same tile of the other while both are in registers.

   Float32, contiguous. */

#include "threads.h"
#include "vectors.h"
#include <math.h>

enum { ROWS = 4, COLUMNS = 3 }; /* of a tile: its sums, and what they are made of, fit into sixteen registers */

/* The inner products of some vectors with some others. */
static void tile(const float *const a[ROWS], const float *const b[COLUMNS], ptrdiff_t size, float found[ROWS][COLUMNS]) {
    vec sums[ROWS][COLUMNS];
    memset(sums, 0, sizeof sums);
    ptrdiff_t k = 0;
    for (; k + WIDTH <= size; k += WIDTH) {
        vec right[COLUMNS];
#pragma GCC unroll 3
        for (int j = 0; j < COLUMNS; j++) right[j] = in_register(get(b[j] + k));
#pragma GCC unroll 4
        for (int i = 0; i < ROWS; i++) {
            vec left = in_register(get(a[i] + k));
#pragma GCC unroll 3
            for (int j = 0; j < COLUMNS; j++) sums[i][j] += left * right[j];
        }
    }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            float sum = total(sums[i][j]);
            for (ptrdiff_t rest = k; rest < size; rest++) sum += a[i][rest] * b[j][rest];
            found[i][j] = sum;
        }
}

typedef struct {
    const float *left, *right;
    float *squared, *terms, *longest;
    ptrdiff_t length, rows, columns;
} sequences;

static void norms_of_units(const void *task, ptrdiff_t first, ptrdiff_t last, int share) {
    const sequences *at = task;
    (void)share;
    const ptrdiff_t length = at->length;
    for (ptrdiff_t unit = first; unit < last; unit++) {
        const float *left = at->left + unit * length * at->rows, *right = at->right + unit * length * at->columns;
        double squared = 0, terms = 0;
        float longest = 0;
        for (ptrdiff_t s = 0; s < length; s += ROWS)
            for (ptrdiff_t t = s / COLUMNS * COLUMNS; t < length; t += COLUMNS) { /* at and above the diagonal */
                const float *a[2][ROWS], *b[2][COLUMNS];
                float one[ROWS][COLUMNS], other[ROWS][COLUMNS];
                for (int i = 0; i < ROWS; i++) { /* beyond the end, the last vector, which then does not count */
                    ptrdiff_t row = s + i < length ? s + i : length - 1;
                    a[0][i] = left + row * at->rows;
                    a[1][i] = right + row * at->columns;
                }
                for (int j = 0; j < COLUMNS; j++) {
                    ptrdiff_t row = t + j < length ? t + j : length - 1;
                    b[0][j] = left + row * at->rows;
                    b[1][j] = right + row * at->columns;
                }
                tile(a[0], b[0], at->rows, one);
                tile(a[1], b[1], at->columns, other);
                for (int i = 0; i < ROWS && s + i < length; i++)
                    for (int j = 0; j < COLUMNS && t + j < length; j++) {
                        if (t + j < s + i) continue;
                        float term = one[i][j] * other[i][j];
                        double times = t + j > s + i ? 2 : 1;
                        squared += times * term;
                        terms += times * fabsf(term);
                        if (t + j == s + i) {
                            longest = one[i][j] > longest ? one[i][j] : longest;
                            longest = other[i][j] > longest ? other[i][j] : longest;
                        }
                    }
            }
        at->squared[unit] = (float)squared;
        at->terms[unit] = (float)terms;
        at->longest[unit] = longest;
    }
}

/* For every unit: the squared norm of the sum over t of left[t] x right[t], the sum of its terms without their signs,
   and the longest of all vectors, squared. left: units x length x rows, right: units x length x columns. */
void saltflat_gram_norms(
    const float *left, const float *right, float *squared, float *terms, float *longest,
    ptrdiff_t units, ptrdiff_t length, ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t shares)
{
    sequences at = {left, right, squared, terms, longest, length, rows, columns};
    saltflat_dealt_out(norms_of_units, &at, units, shares);
}
