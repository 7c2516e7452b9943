/* The threads are those of the OpenMP library that torch brought: a pool of our own would wait for a core while torch's
   threads, which wait for their next task without sleeping, hold it. Where there is none, one thread does it all. */

#include "threads.h"

typedef void region(void (*)(void *), void *, unsigned, unsigned);
typedef int which(void);
static region *in_parallel = NULL;
static which *own_number = NULL;

void saltflat_use_threads(void *parallel, void *number) {
    in_parallel = (region *)parallel;
    own_number = (which *)number;
}

typedef struct {
    share_of_work *work;
    const void *task;
    ptrdiff_t rows;
    int shares;
    char taken[MOST_SHARES];
} shared;

/* First its own share, so that rows stay in the cache of whoever touched them before; then what nobody took: there
   may be fewer threads than were asked for. */
static void take_shares(void *given) {
    shared *all = given;
    int own = own_number ? own_number() : 0;
    for (int i = 0; i < all->shares; i++) {
        int share = (own + i) % all->shares;
        if (__atomic_exchange_n(&all->taken[share], 1, __ATOMIC_RELAXED)) continue;
        all->work(all->task, all->rows * share / all->shares, all->rows * (share + 1) / all->shares, share);
    }
}

void saltflat_dealt_out(share_of_work *work, const void *task, ptrdiff_t rows, ptrdiff_t shares) {
    shared all = {.work = work, .task = task, .rows = rows, .shares = (int)shares};
    if (shares > 1 && in_parallel) in_parallel(take_shares, &all, (unsigned)shares, 0);
    else take_shares(&all);
}
