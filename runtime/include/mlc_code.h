/* mlc_code.h - what compiled code and the runtime agree on, and all that they agree on (code ABI 1).
 *
 * A code image is flat and position independent: it is mapped read+execute at any 4096-byte aligned address, has no
 * relocations, no imports and no writable data. Its first bytes are a struct mlc_code_v1. Everything the code may
 * call is a pointer in struct mlc_env_v1. Layouts are fixed; abi 1 never changes, a change is abi 2.
 *
 * Includes <stddef.h> and <stdint.h>, nothing else: compiled code, firmware and the runtime all include it. */
#ifndef MLC_CODE_H
#define MLC_CODE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MLC_CODE_MAGIC UINT32_C(0x4d4c4331) /* bytes "1CLM" in the file: little endian */
#define MLC_CODE_ABI UINT32_C(1)

/* First bytes of a code image. Offsets count bytes from the image's start. */
typedef struct mlc_code_v1 {
  uint32_t magic;          /* MLC_CODE_MAGIC */
  uint32_t abi;            /* MLC_CODE_ABI */
  uint32_t image_bytes;    /* at least; the rest of the section is zero padding */
  uint32_t kernel_count;   /* kernel_index of every launch is below it */
  uint32_t plan_offset;    /* of a mlc_entry_v1 */
  uint32_t forward_offset; /* of a mlc_entry_v1 */
  uint32_t symbol_count;   /* equals the model description's */
  uint32_t scratch_bytes;  /* stack that a kernel may use on a pool thread, 0: a page or less */
} mlc_code_v1;

typedef struct mlc_env_v1 mlc_env_v1;

/* Computes tiles [begin, end). Tiles write disjoint memory, so that any split gives the same bits. */
typedef void (*mlc_kernel_v1)(const void *args, int64_t begin, int64_t end);

/* `what` of mlc_env_v1.fail: the runtime makes a sentence of it. */
#define MLC_FAIL_INPUT_DIM UINT32_C(1)    /* index: flat index into input_dims; got and want: sizes */
#define MLC_FAIL_SYMBOL_RANGE UINT32_C(2) /* index: symbol; got: its value */
#define MLC_FAIL_SYMBOL_CLASH UINT32_C(3) /* index: symbol; got and want: two values read for it */
#define MLC_FAIL_BOUNDS UINT32_C(4)       /* index: kernel; got: index in the data; want: size it must be below */
#define MLC_FAIL_OTHER UINT32_C(5)        /* index: kernel or -1; got: free */
#define MLC_FAIL_SIZE UINT32_C(6)         /* index: -1; got: a size inside the model that would be below 0 */
#define MLC_FAIL_DATA_SIZE UINT32_C(7)    /* index: -1; got: a size computed from data; want: what it must be */

struct mlc_env_v1 {
  uint32_t struct_size; /* sizeof(mlc_env_v1) */
  uint32_t abi;         /* MLC_CODE_ABI */
  void *host;           /* the runtime's; compiled code does not read it */
  /* Runs `kernel` over [0, tile_count), split in any way over threads; returns when all tiles are done.
   * tile_count 0 runs nothing. Returns 0; a status other than 0 must be returned by forward at once. */
  int32_t (*launch)(const mlc_env_v1 *env, uint32_t kernel_index, mlc_kernel_v1 kernel, const void *args,
                    int64_t tile_count);
  /* Notes why the call fails and returns the status that plan or forward is to return (never 0).
   * `status` is an mlc_status, 0: the runtime chooses the one that fits `what`. */
  int32_t (*fail)(const mlc_env_v1 *env, int32_t status, uint32_t what, int64_t index, int64_t got, int64_t want);
};

/* One call. input_dims holds the dims of all inputs one after another, output_dims those of all outputs. */
typedef struct mlc_call_v1 {
  uint32_t struct_size; /* sizeof(mlc_call_v1) */
  uint32_t reserved;    /* 0 */
  const mlc_env_v1 *env;
  const void *const *inputs; /* forward only */
  void *const *outputs;      /* forward only */
  const uint8_t *weights;    /* 64-byte aligned; null if the model has none */
  uint8_t *arena;            /* forward only; aligned as the target says; arena_bytes long */
  const int64_t *input_dims;
  int64_t *output_dims; /* plan writes it; forward writes those that data decide, of which plan gave the largest */
  int64_t *symbols;     /* plan writes it, forward reads it, and writes those that data decide */
  int64_t arena_bytes;  /* plan writes it */
  uint8_t *state;       /* of all states, one after another, each from a line on; null: the model has none */
} mlc_call_v1;

/* plan reads input_dims and fills symbols, output_dims and arena_bytes; forward computes. Both return 0, or what
 * env->fail or env->launch returned. */
typedef int32_t (*mlc_entry_v1)(mlc_call_v1 *call);

#ifdef __cplusplus
}
#endif

#endif
