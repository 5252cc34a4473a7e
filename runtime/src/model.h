/* model.h - the checked view of a model, inside the runtime. */
#ifndef MLC_MODEL_H
#define MLC_MODEL_H

#include "format.h"
#include "mlc_rt.h"
#include "sentence.h"

struct mlc_model {
  const format_symbol *symbols;
  const format_tensor *tensors; /* inputs, then outputs, then states */
  const int64_t *dims;
  const char *text;
  uint32_t symbol_count;
  uint32_t input_count;
  uint32_t output_count;
  uint32_t state_count;
  uint32_t input_dim_count;
  uint32_t output_dim_count;
  uint32_t target_index;
  const format_target *target;
  const mlc_code_v1 *code;
  mlc_entry_v1 plan; /* null: the model was only viewed to be described */
  mlc_entry_v1 forward;
  void *mapping; /* null: code that was linked in */
  uint64_t mapping_bytes;
  const uint8_t *weights;
  const uint8_t *initial_state; /* the first bytes of the states; what follows is zeros */
  uint64_t initial_state_bytes;
  uint64_t state_bytes;
  const void *info;
  uint64_t info_bytes;
  const format_section *sections; /* null: a static model */
  uint32_t section_count;
};

_Static_assert(sizeof(struct mlc_model) <= sizeof(mlc_model_storage), "mlc_model_storage is too small");

/* Fills the description part of `model` from a META section, 8-byte aligned, checking every bound. */
mlc_status model_read_meta(mlc_model *model, const uint8_t *bytes, uint64_t size_bytes, sentence *why);

/* Checks one TARGET section. */
mlc_status model_check_target(const format_target *target, sentence *why);

/* Takes the first of `targets` that `cpu` can run; says in `why` what stands in the way of the nearest one. */
mlc_status model_choose_target(const format_target *const *targets, uint32_t target_count, const mlc_cpu *cpu,
                               uint32_t *out_index, sentence *why);

/* Checks a code image of `size_bytes` against the description in `model`. */
mlc_status model_check_code(const mlc_model *model, const uint8_t *image, uint64_t size_bytes, sentence *why);

/* Sets plan and forward to entries of `image`, executable memory that was checked before. */
void model_set_entries(mlc_model *model, const uint8_t *image);

/* Takes the first `size_bytes` of what states begin as. */
mlc_status model_set_initial_state(mlc_model *model, const uint8_t *bytes, uint64_t size_bytes, sentence *why);

/* Bytes of state `index` with what pads it to a line; *out_bytes, if there, without. */
uint64_t model_state_room(const mlc_model *model, uint32_t index, uint64_t *out_bytes);

/* Bytes of a tensor of that shape; 0 and *out_bytes where they fit an int64_t, else another number. */
int model_tensor_bytes(uint32_t dtype, const int64_t *shape, uint32_t rank, uint64_t *out_bytes);

static inline const char *model_symbol_name(const mlc_model *model, uint32_t index) {
  return model->text + model->symbols[index].name_offset;
}

static inline const char *model_tensor_name(const mlc_model *model, uint32_t index) {
  return model->text + model->tensors[index].name_offset;
}

#endif
