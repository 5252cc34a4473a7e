/* port_none.c - no operating system: static models on one thread. */
#include "port.h"

/* Mapped artifacts need pages whose rights can change; firmware links its model in (mlc_model_view_static). */
int port_code_map(const void *image, uint64_t size_bytes, void **out_code) {
  (void)image, (void)size_bytes, (void)out_code;
  return -1;
}

void port_code_unmap(void *code, uint64_t size_bytes) { (void)code, (void)size_bytes; }

void port_large_pages(void *memory, uint64_t size_bytes) { (void)memory, (void)size_bytes; }

uint64_t port_time_ns(void) { return 0; }

void port_arm_hwcaps(uint64_t *out_hwcap, uint64_t *out_hwcap2, uint32_t *out_sve_bits) {
  *out_hwcap = 0;
  *out_hwcap2 = 0;
  *out_sve_bits = 0;
}
