/* threads.h - the pool as a session uses it. */
#ifndef MLC_THREADS_H
#define MLC_THREADS_H

#include "mlc_rt.h"

/* Claims the pool for one run; 0: another session has it. */
int pool_claim(mlc_pool *pool);
void pool_release(mlc_pool *pool);

/* Runs the kernel's tiles on all threads of a claimed pool; returns when all are done. tile_count > 0. */
void pool_run(mlc_pool *pool, mlc_kernel_v1 kernel, const void *args, int64_t tile_count);

#endif
