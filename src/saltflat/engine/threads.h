/* Rows that are dealt out to the threads that torch keeps ready. */

#ifndef SALTFLAT_THREADS
#define SALTFLAT_THREADS

#include <stddef.h>

enum { MOST_SHARES = 64 };

typedef void share_of_work(const void *task, ptrdiff_t first, ptrdiff_t last, int share);

/* Take all rows, in so many shares of neighbours. Which rows make a share never depends on who takes it. */
void saltflat_dealt_out(share_of_work *work, const void *task, ptrdiff_t rows, ptrdiff_t shares);

#endif
