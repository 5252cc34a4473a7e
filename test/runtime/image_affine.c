/* A code image for the runtime's tests: y = x * w + b over [B, D] rows with symbol B in [1, 64] and D 8.
 * Freestanding; linked flat by targets/cpu/image.ld. Weights: w[8] then b[8], f32. Input 1: scalar i64 row to check. */
#include "mlc_code.h"

enum { COLUMNS = 8, BATCH_MAX = 64 };

typedef struct affine_args {
  const float *x;
  const float *weights;
  float *y;
} affine_args;

__attribute__((used)) static void affine(const void *opaque, int64_t begin, int64_t end) {
  const affine_args *args = (const affine_args *)opaque;
  for (int64_t row = begin; row < end; ++row)
    for (int column = 0; column < COLUMNS; ++column) {
      const int64_t at = row * COLUMNS + column;
      args->y[at] = args->x[at] * args->weights[column] + args->weights[COLUMNS + column];
    }
}

__attribute__((used)) int32_t plan(mlc_call_v1 *call) {
  const int64_t batch = call->input_dims[0];
  if (batch < 1 || batch > BATCH_MAX) return call->env->fail(call->env, 0, MLC_FAIL_SYMBOL_RANGE, 0, batch, 0);
  if (call->input_dims[1] != COLUMNS)
    return call->env->fail(call->env, 0, MLC_FAIL_INPUT_DIM, 1, call->input_dims[1], COLUMNS);
  call->symbols[0] = batch;
  call->output_dims[0] = batch;
  call->output_dims[1] = COLUMNS;
  call->arena_bytes = batch * COLUMNS * (int64_t)sizeof(float);
  return 0;
}

/* x -> arena -> y, so that the arena is used; then checks that the row index is inside. */
__attribute__((used)) int32_t forward(mlc_call_v1 *call) {
  const int64_t batch = call->symbols[0];
  const float *weights = (const float *)(const void *)call->weights;
  const affine_args first = {(const float *)call->inputs[0], weights, (float *)(void *)call->arena};
  const affine_args second = {(const float *)(const void *)call->arena, weights, (float *)call->outputs[0]};
  const int64_t row = *(const int64_t *)call->inputs[1];
  if (row < 0 || row >= batch) return call->env->fail(call->env, 0, MLC_FAIL_BOUNDS, 1, row, batch);
  int32_t status = call->env->launch(call->env, 0, affine, &first, batch);
  if (status == 0) status = call->env->launch(call->env, 1, affine, &second, batch);
  return status;
}

__asm__(".pushsection .mlc.header,\"a\"\n"
        ".globl mlc_code_header\n"
        ".hidden mlc_code_header\n"
        "mlc_code_header:\n"
        ".long 0x4d4c4331, 1\n"
        ".long mlc_image_end - mlc_code_header\n"
        ".long 2\n"
        ".long plan - mlc_code_header\n"
        ".long forward - mlc_code_header\n"
        ".long 1\n"
        ".long 0\n"
        ".popsection\n");
