/* port.h - what the runtime asks of an operating system; one port_*.c implements it.
 *
 * Functions return 0 for success and another number for failure. None allocates from the C heap. */
#ifndef MLC_PORT_H
#define MLC_PORT_H

#include <stdint.h>

typedef struct port_thread {
  uint64_t opaque[4];
} port_thread;

typedef struct port_bell {
  uint64_t opaque[16];
} port_bell;

/* Copies `image` (size_bytes > 0) to fresh pages that end up readable and executable, never writable and executable at
 * once. *out_code is aligned to 4096 bytes. */
int port_code_map(const void *image, uint64_t size_bytes, void **out_code);
/* Undoes port_code_map with the same size. */
void port_code_unmap(void *code, uint64_t size_bytes);

/* Asks for large pages under memory that was not written yet. A hint: where there are none, nothing happens. */
void port_large_pages(void *memory, uint64_t size_bytes);

/* A monotonic clock; 0 where there is none. */
uint64_t port_time_ns(void);

/* AT_HWCAP and AT_HWCAP2 in Linux's numbering, and the SVE vector length (0: no SVE). Arm only; zeros elsewhere. */
void port_arm_hwcaps(uint64_t *out_hwcap, uint64_t *out_hwcap2, uint32_t *out_sve_bits);

/* From here on only threads.c asks; with port_none.c goes threads_none.c, which does not. */

/* Starts a thread on `body(context)`; *thread stays in place until port_thread_join. */
int port_thread_start(port_thread *thread, void (*body)(void *context), void *context);
void port_thread_join(port_thread *thread);
/* Lets other threads have the core. */
void port_yield(void);

/* A lock with a condition. port_bell_wait: holds the lock before and after, may return early. */
int port_bell_init(port_bell *bell);
void port_bell_close(port_bell *bell);
void port_bell_lock(port_bell *bell);
void port_bell_unlock(port_bell *bell);
void port_bell_wait(port_bell *bell);
void port_bell_ring(port_bell *bell);

#endif
