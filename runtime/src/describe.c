/* describe.c - reads META and TARGET sections and code headers: every bound is checked here, once. */
#include "model.h"

#define SCRATCH_BYTES_MAX (UINT32_C(4) << 20) /* half of the usual stack of a thread */

/* What keeps a CPU from running a target. */
enum fit { FIT, FIT_LACKS_FEATURES, FIT_OTHER_SVE, FIT_OTHER_ABI, FIT_OTHER_ARCH };

static mlc_status refuse(sentence *why, const char *text) {
  sentence_text(why, text);
  return MLC_BAD_MODEL;
}

static int is_zero(const uint8_t *bytes, uint32_t count) {
  uint8_t seen = 0;
  for (uint32_t index = 0; index < count; ++index) seen |= bytes[index];
  return seen == 0;
}

/* Whether `count` items of `item_bytes` at `offset` lie in `size_bytes` and are aligned to `align`. */
static int is_inside(uint64_t size_bytes, uint32_t offset, uint32_t count, uint32_t item_bytes, uint32_t align) {
  return offset % align == 0 && offset <= size_bytes && (uint64_t)count * item_bytes <= size_bytes - offset;
}

static int is_name(const char *text, uint32_t text_bytes, uint32_t offset, uint32_t name_bytes) {
  if (offset >= text_bytes || name_bytes >= text_bytes - offset || name_bytes == 0) return 0;
  if (text[offset + name_bytes] != '\0') return 0;
  for (uint32_t index = 0; index < name_bytes; ++index)
    if (text[offset + index] == '\0') return 0;
  return 1;
}

int model_tensor_bytes(uint32_t dtype, const int64_t *shape, uint32_t rank, uint64_t *out_bytes) {
  uint64_t bytes = mlc_dtype_bytes(dtype);
  int is_empty = 0;
  for (uint32_t axis = 0; axis < rank; ++axis) {
    if (shape[axis] < 0) return -1;
    if (shape[axis] == 0) {
      is_empty = 1;
      continue;
    }
    /* Without the zeros: strides are products of the other dims, and compiled code computes them too. */
    if (bytes > (uint64_t)INT64_MAX / (uint64_t)shape[axis]) return -1;
    bytes *= (uint64_t)shape[axis];
  }
  *out_bytes = is_empty ? 0 : bytes;
  return 0;
}

static int names_symbol(int64_t dim, int is_output) {
  return dim < 0 && dim != MLC_DIM_COMPUTED && !(is_output && dim == MLC_DIM_DATA);
}

static mlc_status check_tensor(const mlc_model *model, const format_tensor *tensor, uint32_t text_bytes,
                               uint32_t dim_first, uint32_t dim_count, sentence *why) {
  const int is_output = tensor >= model->tensors + model->input_count;
  int64_t known[MLC_RANK_MAX];
  uint64_t bytes;
  if (!is_name(model->text, text_bytes, tensor->name_offset, tensor->name_bytes))
    return refuse(why, "model description: a tensor's name is out of bounds");
  if (tensor->dtype >= MLC_DTYPE_COUNT) return refuse(why, "model description: a tensor has an unknown type");
  if (tensor->rank > MLC_RANK_MAX) return refuse(why, "model description: a tensor's rank is above 16");
  if (tensor->reserved != 0 || tensor->reserved2 != 0)
    return refuse(why, "model description: a tensor's reserved field is not zero");
  if (tensor->dim_first != dim_first || tensor->rank > dim_count - dim_first)
    return refuse(why, "model description: a tensor's dims are out of bounds");
  for (uint32_t axis = 0; axis < tensor->rank; ++axis) {
    const int64_t dim = model->dims[dim_first + axis];
    if (names_symbol(dim, is_output) && -1 - dim >= (int64_t)model->symbol_count)
      return refuse(why, "model description: a dim names a symbol that is not there");
    known[axis] = dim < 0 ? 1 : dim;
  }
  if (model_tensor_bytes(tensor->dtype, known, tensor->rank, &bytes) != 0)
    return refuse(why, "model description: a tensor is too large");
  return MLC_OK;
}

uint64_t model_state_room(const mlc_model *model, uint32_t index, uint64_t *out_bytes) {
  const format_tensor *tensor = &model->tensors[model->input_count + model->output_count + index];
  uint64_t bytes = 0;
  /* Checked when the description was read. */
  (void)model_tensor_bytes(tensor->dtype, model->dims + tensor->dim_first, tensor->rank, &bytes);
  if (out_bytes) *out_bytes = bytes;
  return (bytes + FORMAT_ALIGN_BYTES - 1) / FORMAT_ALIGN_BYTES * FORMAT_ALIGN_BYTES;
}

static mlc_status check_states(mlc_model *model, sentence *why) {
  model->state_bytes = 0;
  for (uint32_t index = 0; index < model->state_count; ++index) {
    const format_tensor *tensor = &model->tensors[model->input_count + model->output_count + index];
    for (uint32_t axis = 0; axis < tensor->rank; ++axis)
      if (model->dims[tensor->dim_first + axis] < 0) return refuse(why, "model description: a state has no fixed size");
    const uint64_t room = model_state_room(model, index, NULL);
    if (room > (uint64_t)INT64_MAX - model->state_bytes) return refuse(why, "model description: states are too large");
    model->state_bytes += room;
  }
  return MLC_OK;
}

mlc_status model_set_initial_state(mlc_model *model, const uint8_t *bytes, uint64_t size_bytes, sentence *why) {
  if (size_bytes > model->state_bytes)
    return refuse(why, "the section of what states begin as is larger than the states");
  model->initial_state = bytes;
  model->initial_state_bytes = size_bytes;
  return MLC_OK;
}

mlc_status model_read_meta(mlc_model *model, const uint8_t *bytes, uint64_t size_bytes, sentence *why) {
  const format_meta *meta = (const format_meta *)(const void *)bytes;
  if (size_bytes < sizeof *meta) return refuse(why, "model description is too short");
  if (meta->version != FORMAT_META_VERSION) {
    sentence_text(why, "model description has version ");
    sentence_number(why, meta->version);
    sentence_text(why, "; this library reads 1");
    return MLC_ABI_MISMATCH;
  }
  if (meta->reserved != 0 || !is_zero(meta->reserved2, sizeof meta->reserved2))
    return refuse(why, "model description: a reserved field is not zero");
  if (meta->input_count > UINT16_MAX || meta->output_count > UINT16_MAX || meta->state_count > UINT16_MAX ||
      meta->symbol_count > UINT16_MAX)
    return refuse(why, "model description: more than 65535 inputs, outputs, states or symbols");
  const uint32_t tensor_count = meta->input_count + meta->output_count + meta->state_count;
  if (!is_inside(size_bytes, meta->symbol_offset, meta->symbol_count, sizeof(format_symbol), 8) ||
      !is_inside(size_bytes, meta->tensor_offset, tensor_count, sizeof(format_tensor), 8) ||
      !is_inside(size_bytes, meta->dim_offset, meta->dim_count, sizeof(int64_t), 8) ||
      !is_inside(size_bytes, meta->text_offset, meta->text_bytes, 1, 1))
    return refuse(why, "model description: a table is out of bounds");

  model->symbols = (const format_symbol *)(const void *)(bytes + meta->symbol_offset);
  model->tensors = (const format_tensor *)(const void *)(bytes + meta->tensor_offset);
  model->dims = (const int64_t *)(const void *)(bytes + meta->dim_offset);
  model->text = (const char *)(bytes + meta->text_offset);
  model->symbol_count = meta->symbol_count;
  model->input_count = meta->input_count;
  model->output_count = meta->output_count;
  model->state_count = meta->state_count;
  for (uint32_t index = 0; index < meta->symbol_count; ++index) {
    const format_symbol *symbol = &model->symbols[index];
    if (!is_name(model->text, meta->text_bytes, symbol->name_offset, symbol->name_bytes))
      return refuse(why, "model description: a symbol's name is out of bounds");
    if (symbol->min < 0 || symbol->max < symbol->min)
      return refuse(why, "model description: a symbol's range is empty or negative");
  }
  uint32_t dim_first = 0;
  for (uint32_t index = 0; index < tensor_count; ++index) {
    const mlc_status status =
        check_tensor(model, &model->tensors[index], meta->text_bytes, dim_first, meta->dim_count, why);
    if (status != MLC_OK) return status;
    dim_first += model->tensors[index].rank;
    if (index + 1 == meta->input_count) model->input_dim_count = dim_first;
    if (index + 1 == meta->input_count + meta->output_count)
      model->output_dim_count = dim_first - model->input_dim_count;
  }
  if (dim_first != meta->dim_count) return refuse(why, "model description: dims belong to no tensor");
  return check_states(model, why);
}

static int is_alignment(uint32_t value) {
  return value > 0 && value <= FORMAT_ALIGNMENT_MAX && (value & (value - 1)) == 0;
}

mlc_status model_check_target(const format_target *target, sentence *why) {
  if (target->version != FORMAT_TARGET_VERSION) {
    sentence_text(why, "target description has version ");
    sentence_number(why, target->version);
    sentence_text(why, "; this library reads 1");
    return MLC_ABI_MISMATCH;
  }
  if (!is_alignment(target->arena_align_bytes) || !is_alignment(target->io_align_bytes))
    return refuse(why, "target description: an alignment is not a power of two up to 4096");
  if (target->arena_bytes_max < -1) return refuse(why, "target description: the arena has a negative size");
  if (!is_zero(target->reserved, sizeof target->reserved))
    return refuse(why, "target description: a reserved field is not zero");
  if (target->name[sizeof target->name - 1] != '\0')
    return refuse(why, "target description: the name does not end");
  return MLC_OK;
}

static enum fit fit_target(const format_target *target, const mlc_cpu *cpu) {
  if (target->arch != cpu->arch) return FIT_OTHER_ARCH;
  if (target->code_abi != MLC_CODE_ABI) return FIT_OTHER_ABI;
  if (target->sve_bits != 0 && cpu->sve_bits != 0 && target->sve_bits != cpu->sve_bits) return FIT_OTHER_SVE;
  if (target->features & ~cpu->features) return FIT_LACKS_FEATURES;
  if (target->sve_bits != 0 && cpu->sve_bits == 0) return FIT_OTHER_SVE;
  return FIT;
}

static void say_arch(sentence *why, uint32_t arch) {
  static const char *const names[] = {"another machine", "x86-64", "aarch64", "thumb", "riscv64"};
  if (arch < sizeof names / sizeof names[0]) {
    sentence_text(why, names[arch]);
  } else {
    sentence_text(why, "arch ");
    sentence_number(why, arch);
  }
}

static void say_missing(sentence *why, const format_target *target, uint64_t missing) {
  uint32_t count = 0;
  sentence_text(why, "this artifact needs ");
  say_arch(why, target->arch);
  for (uint32_t bit = 0; bit < 64; ++bit) {
    if (!(missing >> bit & 1)) continue;
    const char *name = mlc_feature_name(target->arch, bit);
    sentence_text(why, count++ ? ", " : " ");
    sentence_text(why, name ? name : "feature ");
    if (!name) sentence_number(why, bit);
  }
  sentence_text(why, count == 1 ? "; this CPU lacks it" : "; this CPU lacks them");
}

static mlc_status say_misfit(const format_target *target, const mlc_cpu *cpu, enum fit fit, sentence *why) {
  switch (fit) {
    case FIT_LACKS_FEATURES:
      say_missing(why, target, target->features & ~cpu->features);
      break;
    case FIT_OTHER_SVE:
      sentence_text(why, "this artifact needs SVE vectors of ");
      sentence_number(why, target->sve_bits);
      sentence_text(why, " bits; this CPU has ");
      sentence_number(why, cpu->sve_bits);
      break;
    case FIT_OTHER_ABI:
      sentence_text(why, "this artifact's code has ABI ");
      sentence_number(why, target->code_abi);
      sentence_text(why, "; this library runs 1");
      return MLC_ABI_MISMATCH;
    default:
      sentence_text(why, "this artifact is for ");
      say_arch(why, target->arch);
      sentence_text(why, "; this machine is ");
      say_arch(why, cpu->arch);
      break;
  }
  return MLC_UNSUPPORTED_CPU;
}

mlc_status model_choose_target(const format_target *const *targets, uint32_t target_count, const mlc_cpu *cpu,
                               uint32_t *out_index, sentence *why) {
  uint32_t nearest = 0;
  for (uint32_t index = 0; index < target_count; ++index) {
    const enum fit fit = fit_target(targets[index], cpu);
    if (fit == FIT) {
      *out_index = index;
      return MLC_OK;
    }
    /* Targets stand best first, so among equal misfits the last one asks the least. */
    if (fit <= fit_target(targets[nearest], cpu)) nearest = index;
  }
  return say_misfit(targets[nearest], cpu, fit_target(targets[nearest], cpu), why);
}

static int is_entry(const mlc_code_v1 *code, uint32_t offset, uint32_t arch) {
  if (offset < sizeof *code || offset >= code->image_bytes) return 0;
  return arch != MLC_ARCH_AARCH64 || offset % 4 == 0;
}

mlc_status model_check_code(const mlc_model *model, const uint8_t *image, uint64_t size_bytes, sentence *why) {
  const mlc_code_v1 *code = (const mlc_code_v1 *)(const void *)image;
  if (size_bytes < sizeof *code || code->magic != MLC_CODE_MAGIC)
    return refuse(why, "code image: it does not start with a code header");
  if (code->abi != MLC_CODE_ABI) {
    sentence_text(why, "code image: ABI ");
    sentence_number(why, code->abi);
    sentence_text(why, "; this library runs 1");
    return MLC_ABI_MISMATCH;
  }
  if (code->image_bytes > size_bytes) return refuse(why, "code image: it is shorter than its header says");
  if (!is_entry(code, code->plan_offset, model->target->arch) ||
      !is_entry(code, code->forward_offset, model->target->arch))
    return refuse(why, "code image: an entry is outside of it");
  if (code->symbol_count != model->symbol_count)
    return refuse(why, "code image: its symbols are not the model description's");
  if (code->kernel_count > UINT32_C(1) << 24) return refuse(why, "code image: more kernels than there can be");
  if (code->scratch_bytes > SCRATCH_BYTES_MAX) return refuse(why, "code image: it asks for too much stack");
  return MLC_OK;
}

void model_set_entries(mlc_model *model, const uint8_t *image) {
  const mlc_code_v1 *code = (const mlc_code_v1 *)(const void *)image;
  const uintptr_t base = (uintptr_t)image;
  model->code = code;
  /* Through integers: ISO C has no conversion from object to function pointers. */
  model->plan = (mlc_entry_v1)(base + code->plan_offset);
  model->forward = (mlc_entry_v1)(base + code->forward_offset);
}
