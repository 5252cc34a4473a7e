/* header.c - the public headers alone in a translation unit, in the oldest C they promise. */
#include "mlc_rt.h"

/* The layouts that compiled code and ctypes count on, where pointers have 64 bits. */
typedef char call_is_88_bytes[sizeof(void *) != 8 || sizeof(mlc_call_v1) == 88 ? 1 : -1];
typedef char env_is_32_bytes[sizeof(void *) != 8 || sizeof(mlc_env_v1) == 32 ? 1 : -1];
typedef char code_is_32_bytes[sizeof(mlc_code_v1) == 32 ? 1 : -1];
typedef char tensor_is_160_bytes[sizeof(void *) != 8 || sizeof(mlc_tensor) == 160 ? 1 : -1];

uint32_t header_major(void) { return MLC_ABI_VERSION >> 16; }
