/* mlc_rt.h - the whole public API of the mlc runtime. If a name is not in this file, it is not API.
 *
 * Memory:  never calls malloc; every byte it writes is in storage that the caller passed. Code of a mapped artifact
 *          is the exception that the system keeps: mlc_model_view maps it, mlc_model_close unmaps it.
 * Errors:  fallible calls return mlc_status; outputs come last and are untouched on failure.
 * Threads: a model is immutable and may be shared; a session or a pool is used by one thread at a time.
 * Structs: the caller sets struct_size to sizeof; reserved fields are 0 and checked.
 *
 * A run:   mlc_model_view -> mlc_model_need -> mlc_session_init -> mlc_session_bind_input (each) -> mlc_session_plan
 *          -> mlc_session_bind_arena, mlc_session_bind_output (each) -> mlc_session_run. */
#ifndef MLC_RT_H
#define MLC_RT_H

#include <stddef.h>
#include <stdint.h>

#include "mlc_code.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(MLC_BUILD_SHARED) && defined(_WIN32)
#define MLC_API __declspec(dllexport)
#elif defined(__GNUC__)
#define MLC_API __attribute__((visibility("default")))
#else
#define MLC_API
#endif
#if defined(__GNUC__)
#define MLC_NODISCARD __attribute__((warn_unused_result))
#else
#define MLC_NODISCARD
#endif

/* ---- Versions ---------------------------------------------------------------------------------------------------- */

#define MLC_ABI_VERSION UINT32_C(0x00010000) /* major << 16 | minor of this header */

/* The library's MLC_ABI_VERSION; another major than the header's: do not call on. */
MLC_API uint32_t mlc_abi_version(void);

/* ---- Status ------------------------------------------------------------------------------------------------------ */

/* Append only. 0x1_: the caller's fault, 0x2_: the file's, 0x3_: storage, 0x4_: the machine's, 0x5_: the data's. */
#define MLC_STATUS_LIST(X)                                                            \
  X(OK, 0x00, "ok")                                                                   \
  X(BAD_ARGUMENT, 0x10, "null, misaligned or out-of-range argument")                  \
  X(BAD_TYPE, 0x11, "tensor type differs from the model's")                           \
  X(BAD_SHAPE, 0x12, "tensor shape or size differs from the model's")                 \
  X(BAD_STATE, 0x13, "call out of order: an input, the plan or an output is missing") \
  X(BAD_MODEL, 0x20, "not a model, truncated or inconsistent")                        \
  X(ABI_MISMATCH, 0x21, "model was built for another version of the format or ABI")   \
  X(BAD_CHECKSUM, 0x22, "model is damaged: a checksum is wrong")                      \
  X(TOO_SMALL, 0x30, "storage smaller than the need that was stated")                 \
  X(UNSUPPORTED_CPU, 0x40, "no code in the model can run on this CPU")                \
  X(SYSTEM, 0x41, "the operating system refused memory or a thread")                  \
  X(OUT_OF_RANGE, 0x50, "a size is outside the range the model was exported for")     \
  X(INDEX_BOUNDS, 0x51, "an index in the data is outside the tensor it indexes")      \
  X(EXECUTION, 0x52, "compiled code reported an error")

typedef int32_t mlc_status;

#define MLC_STATUS_ENUM(name, value, text) MLC_##name = value,
enum { MLC_STATUS_LIST(MLC_STATUS_ENUM) MLC_STATUS_END };
#undef MLC_STATUS_ENUM

/* Text of a status; "unknown status" for another value. Static storage. */
MLC_API const char *mlc_status_text(mlc_status status);
/* Name of a status ("BAD_MODEL"). Static storage. */
MLC_API const char *mlc_status_name(mlc_status status);

/* ---- Types ------------------------------------------------------------------------------------------------------- */

#define MLC_RANK_MAX 16

/* Order is the file's dtype code. Bytes an element; bool is one byte, 0 or 1; what has fewer than 8 bits lies in the low
 * bits of a byte of its own. */
#define MLC_DTYPE_LIST(X)                                                                                       \
  X(F64, "f64", 8) X(F32, "f32", 4) X(F16, "f16", 2) X(BF16, "bf16", 2) X(I64, "i64", 8) X(I32, "i32", 4)       \
  X(I16, "i16", 2) X(I8, "i8", 1) X(U8, "u8", 1) X(U16, "u16", 2) X(U32, "u32", 4) X(U64, "u64", 8)             \
  X(BOOL, "bool", 1) X(F8E4M3FN, "f8e4m3fn", 1) X(F8E4M3FNUZ, "f8e4m3fnuz", 1) X(F8E5M2, "f8e5m2", 1)            \
  X(F8E5M2FNUZ, "f8e5m2fnuz", 1) X(F8E8M0FNU, "f8e8m0fnu", 1) X(F4E2M1FN, "f4e2m1fn", 1) X(I4, "i4", 1)          \
  X(U4, "u4", 1) X(I2, "i2", 1) X(U2, "u2", 1)

#define MLC_DTYPE_ENUM(name, text, bytes) MLC_DTYPE_##name,
enum { MLC_DTYPE_LIST(MLC_DTYPE_ENUM) MLC_DTYPE_COUNT };
#undef MLC_DTYPE_ENUM

/* "f32"; null for an unknown code. */
MLC_API const char *mlc_dtype_name(uint32_t dtype);
/* 4 for f32; 0 for an unknown code. */
MLC_API uint32_t mlc_dtype_bytes(uint32_t dtype);

#define MLC_DIM_COMPUTED INT64_MIN /* a dim that only mlc_session_plan tells */
#define MLC_DIM_DATA (INT64_MIN + 1) /* of an output: data decide it; the plan gives the most, the run how many came */
/* A dim of a description: >= 0 its size; MLC_DIM_COMPUTED; MLC_DIM_DATA; else symbol -1 - dim. */

typedef struct mlc_tensor_info {
  uint32_t struct_size;
  uint32_t dtype;
  uint32_t rank;
  uint32_t reserved;
  const char *name; /* UTF-8, borrowed from the model */
  int64_t dims[MLC_RANK_MAX];
} mlc_tensor_info;

typedef struct mlc_symbol_info {
  uint32_t struct_size;
  uint32_t reserved;
  const char *name;
  int64_t min; /* both included */
  int64_t max;
} mlc_symbol_info;

/* Dense row-major data. Dims after `rank` are not read. */
typedef struct mlc_tensor {
  uint32_t struct_size;
  uint32_t dtype;
  uint32_t rank;
  uint32_t reserved;
  void *data;          /* aligned as mlc_need.io_align_bytes says; may be null where size_bytes is 0 */
  uint64_t size_bytes; /* of what data points at; at least the shape's */
  int64_t shape[MLC_RANK_MAX];
} mlc_tensor;

/* ---- CPU --------------------------------------------------------------------------------------------------------- */

#define MLC_ARCH_X86_64 UINT32_C(1)
#define MLC_ARCH_AARCH64 UINT32_C(2)
#define MLC_ARCH_THUMB UINT32_C(3)   /* static models only */
#define MLC_ARCH_RISCV64 UINT32_C(4) /* static models only */

typedef struct mlc_cpu {
  uint32_t struct_size;
  uint32_t arch;     /* MLC_ARCH_*, 0: one that has no number */
  uint64_t features; /* bit i: the feature mlc_feature_name(arch, i) is there and the system lets programs use it */
  uint32_t sve_bits; /* 0: no SVE */
  uint32_t reserved;
} mlc_cpu;

/* What this machine has. */
MLC_API MLC_NODISCARD mlc_status mlc_cpu_query(mlc_cpu *out_cpu);
/* LLVM's name of feature `bit` of `arch`; null past the last. */
MLC_API const char *mlc_feature_name(uint32_t arch, uint32_t bit);

/* ---- Checksum ---------------------------------------------------------------------------------------------------- */

/* XXH64 with seed 0, as the file format uses it. */
MLC_API uint64_t mlc_checksum(const void *bytes, uint64_t size_bytes);

/* The same in pieces: begin, update any number of times, end (which may be followed by more updates). */
typedef struct mlc_checksum_state {
  uint64_t lanes[4];
  uint64_t total_bytes;
  uint8_t tail[32];
} mlc_checksum_state;
MLC_API void mlc_checksum_begin(mlc_checksum_state *state);
MLC_API void mlc_checksum_update(mlc_checksum_state *state, const void *bytes, uint64_t size_bytes);
MLC_API uint64_t mlc_checksum_end(const mlc_checksum_state *state);

/* ---- Model ------------------------------------------------------------------------------------------------------- */

typedef struct mlc_model mlc_model;

/* Storage of a model; 8-byte aligned, lives as long as the model. */
typedef struct mlc_model_storage {
  uint64_t opaque[64];
} mlc_model_storage;

#define MLC_VERIFY_ALL UINT32_C(0)    /* every checksum: reads the whole file once */
#define MLC_VERIFY_HEADER UINT32_C(1) /* all but the weights' */

typedef struct mlc_view_options {
  uint32_t struct_size;
  uint32_t verify;       /* MLC_VERIFY_* */
  const mlc_cpu *cpu;    /* null: this machine. Another: describes the model only, sessions are refused */
  char *detail;          /* null, or where a sentence on the failure goes, always ending in a zero byte */
  uint32_t detail_bytes; /* of detail; 256 hold any sentence about a file */
  uint32_t reserved;
  const char *method;    /* of a file of several: which one; null: the first */
} mlc_view_options;

/* Checks `blob` (64-byte aligned; lives unchanged as long as the model) and views it: weights are not copied, code is
 * mapped anew as read+execute. Takes the first target that the CPU can run. `options` may be null.
 * BAD_MODEL, ABI_MISMATCH, BAD_CHECKSUM: the file. UNSUPPORTED_CPU: detail names what the CPU lacks. */
MLC_API MLC_NODISCARD mlc_status mlc_model_view(const void *blob, uint64_t size_bytes, const mlc_view_options *options,
                                                mlc_model_storage *storage, const mlc_model **out_model);

/* A model linked into the program (`mlc compile --emit static`, for firmware: port_none.c and threads_none.c take the
 * places of port_posix.c and threads.c). NAME.o holds the META and TARGET sections as read-only data and the code image
 * in an executable section; NAME.h has NAME_model(weights), which fills this struct; NAME.weights is the weights blob,
 * to be placed by the program. Nothing is mapped, checksums are not checked. */
typedef struct mlc_static_model {
  uint32_t struct_size;
  uint32_t meta_bytes;
  const void *meta;   /* META section, 8-byte aligned */
  const void *target; /* TARGET section, 8-byte aligned */
  const mlc_code_v1 *code;
  const void *weights; /* 64-byte aligned; null if the model has none */
  uint64_t weights_bytes;
  const void *state; /* the first bytes of what states begin as, the rest being zeros; null: all zeros */
  uint64_t state_bytes;
} mlc_static_model;
MLC_API MLC_NODISCARD mlc_status mlc_model_view_static(const mlc_static_model *parts, const mlc_view_options *options,
                                                       mlc_model_storage *storage, const mlc_model **out_model);

/* Unmaps the code. Sessions of the model are dead from here on. Null is fine. */
MLC_API void mlc_model_close(const mlc_model *model);

/* Storage a session needs. Constants of the model: safe to print and put in a linker map. */
typedef struct mlc_need {
  uint32_t struct_size;
  uint32_t session_align_bytes;
  uint64_t session_bytes;   /* kept for the session's life */
  uint32_t arena_align_bytes;
  uint32_t io_align_bytes;  /* of input and output data */
  uint64_t arena_bytes_max; /* the most that any allowed shape needs; UINT64_MAX: only mlc_session_plan can tell */
  uint64_t state_bytes;     /* of all states, kept as long as what they remember; 0: the model has none */
} mlc_need;
MLC_API MLC_NODISCARD mlc_status mlc_model_need(const mlc_model *model, mlc_need *out_need);

/* Methods of the model's file, such as a prefill and a decode, that share weights and states: each is viewed as a model
 * of its own, in storage of its own. Sessions of all may be bound to one memory of states. A file of one method, and a
 * static model, have a name of no meaning. Null past the last. */
MLC_API uint32_t mlc_model_method_count(const mlc_model *model);
MLC_API const char *mlc_model_method_name(const mlc_model *model, uint32_t index);
MLC_API uint32_t mlc_model_input_count(const mlc_model *model);
MLC_API uint32_t mlc_model_output_count(const mlc_model *model);
/* States are tensors that runs keep and change, such as caches of keys and values. */
MLC_API uint32_t mlc_model_state_count(const mlc_model *model);
MLC_API uint32_t mlc_model_symbol_count(const mlc_model *model);
MLC_API uint32_t mlc_model_kernel_count(const mlc_model *model);
/* Index of the target that was taken, in the file's order, and its name. */
MLC_API uint32_t mlc_model_target_index(const mlc_model *model);
MLC_API const char *mlc_model_target_name(const mlc_model *model);
/* BAD_ARGUMENT: no such index. Strings are the model's. */
MLC_API MLC_NODISCARD mlc_status mlc_model_input(const mlc_model *model, uint32_t index, mlc_tensor_info *out_info);
MLC_API MLC_NODISCARD mlc_status mlc_model_output(const mlc_model *model, uint32_t index, mlc_tensor_info *out_info);
MLC_API MLC_NODISCARD mlc_status mlc_model_state(const mlc_model *model, uint32_t index, mlc_tensor_info *out_info);
MLC_API MLC_NODISCARD mlc_status mlc_model_symbol(const mlc_model *model, uint32_t index, mlc_symbol_info *out_info);
/* The INFO section (JSON for tools, zero padded); null and 0 for a static model or where there is none. */
MLC_API const void *mlc_model_info(const mlc_model *model, uint64_t *out_size_bytes);

/* Asks the system for large pages under `memory`, before it is first written; a hint, and nothing where there are none.
 * For a file's bytes read into memory and for arenas: weights that stream from memory come 3 to 18% faster. */
MLC_API void mlc_large_pages(void *memory, uint64_t size_bytes);

/* ---- Thread pool, optional --------------------------------------------------------------------------------------- */

typedef struct mlc_pool mlc_pool;

#define MLC_THREADS_MAX UINT32_C(256)

/* Storage of a pool with `thread_count` threads, the caller's among them. 0: no such pool. Align to 64 bytes. */
MLC_API uint64_t mlc_pool_need(uint32_t thread_count);
/* Starts thread_count - 1 threads, which spin about 50 us after work and then sleep. Results do not depend on the
 * count. SYSTEM: no threads. Sessions in several threads may share a pool: who finds it busy computes alone. */
MLC_API MLC_NODISCARD mlc_status mlc_pool_init(void *memory, uint64_t size_bytes, uint32_t thread_count,
                                               mlc_pool **out_pool);
/* Ends and joins the threads. No session may run on the pool. Null is fine. */
MLC_API void mlc_pool_close(mlc_pool *pool);

/* ---- Session ----------------------------------------------------------------------------------------------------- */

typedef struct mlc_session mlc_session;

/* Builds a session in `memory`; the memory and the model outlive it. There is nothing to destroy. */
MLC_API MLC_NODISCARD mlc_status mlc_session_init(const mlc_model *model, void *memory, uint64_t size_bytes,
                                                  mlc_session **out_session);
/* Runs on `pool` from the next run on; null: on the caller's thread. Borrows it. */
MLC_API MLC_NODISCARD mlc_status mlc_session_use_pool(mlc_session *session, mlc_pool *pool);
/* Borrows tensor->data until the next bind or the session's end; copies the rest. A shape other than before undoes the
 * plan. BAD_TYPE, BAD_SHAPE: detail names the input. */
MLC_API MLC_NODISCARD mlc_status mlc_session_bind_input(mlc_session *session, uint32_t index, const mlc_tensor *tensor);
/* Settles symbols, output shapes and arena for the shapes of the bound inputs.
 * BAD_STATE: an input is missing. BAD_SHAPE, OUT_OF_RANGE: detail names input, dim and range. */
MLC_API MLC_NODISCARD mlc_status mlc_session_plan(mlc_session *session, uint64_t *out_arena_bytes);
/* After a plan: the shape of output `index`; struct_size, dtype, rank, shape and size_bytes are set, data is null. */
MLC_API MLC_NODISCARD mlc_status mlc_session_output_shape(const mlc_session *session, uint32_t index,
                                                          mlc_tensor *out_tensor);
/* After a run: the shape that output `index` came out with, no larger than planned; its elements lie dense from the
 * start. Other than planned only where data decide a size. BAD_STATE: no run since the plan. */
MLC_API MLC_NODISCARD mlc_status mlc_session_result_shape(const mlc_session *session, uint32_t index,
                                                          mlc_tensor *out_tensor);
/* After a plan: the value of symbol `index`; of one that data decide, the largest, and after a run the last. */
MLC_API MLC_NODISCARD mlc_status mlc_session_symbol(const mlc_session *session, uint32_t index, int64_t *out_value);
/* Scratch for runs; contents are dead between them. Borrowed until the next bind. */
MLC_API MLC_NODISCARD mlc_status mlc_session_bind_arena(mlc_session *session, void *memory, uint64_t size_bytes);
/* Memory of the states, need.state_bytes of it at a multiple of 64, borrowed until the next bind. It is not written
 * here: mlc_session_reset gives it its first contents, unless it holds those of another session of the model, or of
 * one that a program saved. Sessions that run at the same time must not share it. */
MLC_API MLC_NODISCARD mlc_status mlc_session_bind_state(mlc_session *session, void *memory, uint64_t size_bytes);
/* States become what they are before the first run. BAD_STATE: no memory is bound. */
MLC_API MLC_NODISCARD mlc_status mlc_session_reset(mlc_session *session);
/* Where state `index` lies, to be read and written between runs: all fields are set. */
MLC_API MLC_NODISCARD mlc_status mlc_session_state(mlc_session *session, uint32_t index, mlc_tensor *out_tensor);
/* After a plan: where output `index` goes, in the planned shape and dtype. Must not overlap an input. */
MLC_API MLC_NODISCARD mlc_status mlc_session_bind_output(mlc_session *session, uint32_t index,
                                                         const mlc_tensor *tensor);
/* Points all inputs and outputs at other data of the planned shapes: the short way for repeated runs. */
MLC_API MLC_NODISCARD mlc_status mlc_session_rebind(mlc_session *session, const void *const *inputs,
                                                    void *const *outputs);
/* Runs once, synchronously. Allocates nothing. On failure outputs hold unspecified bytes. */
MLC_API MLC_NODISCARD mlc_status mlc_session_run(mlc_session *session);
/* An array as Python's array interface gives it to C: what the capsule `__array_struct__` points at. */
typedef struct mlc_array {
  int32_t two; /* 2 */
  int32_t rank;
  char kind;
  int32_t item_bytes;
  int32_t flags;
  const intptr_t *shape;
  const intptr_t *strides;
  void *data;
  void *descr;
} mlc_array;
/* Takes `count` arrays out of their capsules; `open` is the host's PyCapsule_GetPointer. */
typedef void *(*mlc_array_opener)(void *box, const char *name);
MLC_API void mlc_arrays_open(mlc_array_opener open, void *const *boxes, uint32_t count, const mlc_array **out_arrays);
/* mlc_session_rebind and mlc_session_run in one, for arrays just as planned. BAD_STATE: no plan, or detail names an
 * array of another type, shape, layout or alignment; nothing ran. */
MLC_API MLC_NODISCARD mlc_status mlc_session_run_arrays(mlc_session *session, const mlc_array *const *inputs,
                                                        const mlc_array *const *outputs);
/* A sentence on the session's last failure, "" if there was none. The session's storage, until its next call. */
MLC_API const char *mlc_session_detail(const mlc_session *session);

/* Time of each kernel, summed over launches from mlc_session_profile on. */
typedef struct mlc_profile_row {
  uint64_t time_ns;
  uint64_t launch_count;
} mlc_profile_row;
/* `rows`: mlc_model_kernel_count of them, zeroed here, borrowed; null: no more profiling. */
MLC_API MLC_NODISCARD mlc_status mlc_session_profile(mlc_session *session, mlc_profile_row *rows, uint32_t row_count);

#ifdef __cplusplus
}
#endif

#endif
