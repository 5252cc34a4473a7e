/* model.c - checks a file and views it as a model; the public questions about one. */
#include "model.h"

#include "memory.h"
#include "port.h"

/* A file's parts, found by check_sections. */
typedef struct parts {
  const uint8_t *blob;
  const format_section *table;
  uint32_t section_count;
  const format_section *meta; /* of the method */
  uint32_t meta_count;
  uint32_t method_index;
  const char *method; /* null: the first */
  const format_section *info;
  const format_section *state;
} parts;

static mlc_status refuse(sentence *why, mlc_status status, const char *text) {
  sentence_text(why, text);
  return status;
}

static mlc_status check_header(const uint8_t *blob, uint64_t size_bytes, sentence *why) {
  const format_header *header = (const format_header *)(const void *)blob;
  if (size_bytes < sizeof *header || memcmp(header->magic, FORMAT_MAGIC, sizeof header->magic) != 0)
    return refuse(why, MLC_BAD_MODEL, "not an mlc artifact: it does not start with MLCMODEL");
  if (header->major != FORMAT_MAJOR) {
    sentence_text(why, "the file has format version ");
    sentence_number(why, header->major);
    sentence_text(why, "; this library reads version 1");
    return MLC_ABI_MISMATCH;
  }
  if (header->total_bytes != size_bytes) {
    const int is_short = header->total_bytes > size_bytes;
    sentence_text(why, is_short ? "the file is truncated: it has " : "the file is too long: it has ");
    sentence_number(why, (int64_t)size_bytes);
    sentence_text(why, " bytes of ");
    sentence_number(why, (int64_t)header->total_bytes);
    return MLC_BAD_MODEL;
  }
  if (header->section_count > FORMAT_SECTION_COUNT_MAX ||
      header->section_count * sizeof(format_section) > size_bytes - sizeof *header)
    return refuse(why, MLC_BAD_MODEL, "the section table does not fit the file");
  for (uint32_t index = 0; index < sizeof header->reserved; ++index)
    if (header->reserved[index] != 0) return refuse(why, MLC_BAD_MODEL, "a reserved byte of the header is not zero");

  format_header zeroed = *header;
  zeroed.table_checksum = 0;
  mlc_checksum_state state;
  mlc_checksum_begin(&state);
  mlc_checksum_update(&state, &zeroed, sizeof zeroed);
  mlc_checksum_update(&state, header + 1, header->section_count * sizeof(format_section));
  if (mlc_checksum_end(&state) != header->table_checksum)
    return refuse(why, MLC_BAD_CHECKSUM, "the file is damaged: the checksum of its section table is wrong");
  return MLC_OK;
}

static void say_section(sentence *why, uint32_t index, const format_section *section) {
  sentence_text(why, "section ");
  sentence_number(why, index);
  sentence_text(why, " (");
  sentence_name(why, section->name);
  sentence_text(why, ")");
}

static int is_same(const char *left, const char *right) {
  for (; *left && *left == *right; ++left) ++right;
  return *left == *right;
}

static void take_meta(parts *file, const format_section *section) {
  if (!file->meta && (!file->method || is_same(file->method, section->name))) {
    file->meta = section;
    file->method_index = file->meta_count;
  }
  ++file->meta_count;
}

/* Sections follow one another without a gap, so that a checksum covers every byte of the file. */
static mlc_status check_layout(parts *file, uint64_t size_bytes, sentence *why) {
  uint64_t position = sizeof(format_header) + file->section_count * sizeof(format_section);
  for (uint32_t index = 0; index < file->section_count; ++index) {
    const format_section *section = &file->table[index];
    if (section->name[sizeof section->name - 1] != '\0')
      return refuse(why, MLC_BAD_MODEL, "a section's name does not end");
    if (section->offset_bytes != position || section->size_bytes == 0 ||
        section->size_bytes % FORMAT_ALIGN_BYTES != 0 || section->size_bytes > size_bytes - position) {
      say_section(why, index, section);
      return refuse(why, MLC_BAD_MODEL, " is out of bounds");
    }
    position += section->size_bytes;
    if (section->kind == FORMAT_META) {
      if (section->target_index != FORMAT_ALL_TARGETS)
        return refuse(why, MLC_BAD_MODEL, "a model description is for one target");
      take_meta(file, section);
      continue;
    }
    const format_section **slot = section->kind == FORMAT_INFO    ? &file->info
                                  : section->kind == FORMAT_STATE ? &file->state
                                                                  : NULL;
    if (!slot) continue;
    if (*slot || section->target_index != FORMAT_ALL_TARGETS) {
      say_section(why, index, section);
      return refuse(why, MLC_BAD_MODEL, " may be there only once, for all targets");
    }
    *slot = section;
  }
  if (position != size_bytes) return refuse(why, MLC_BAD_MODEL, "the file goes on after its last section");
  if (file->meta_count == 0) return refuse(why, MLC_BAD_MODEL, "the file holds no model description");
  if (!file->meta) {
    sentence_text(why, "the file has no method ");
    sentence_name(why, file->method);
    return MLC_BAD_ARGUMENT;
  }
  return MLC_OK;
}

static mlc_status check_checksums(const parts *file, uint32_t verify, sentence *why) {
  for (uint32_t index = 0; index < file->section_count; ++index) {
    const format_section *section = &file->table[index];
    if (section->kind == FORMAT_WEIGHTS && verify == MLC_VERIFY_HEADER) continue;
    if (mlc_checksum(file->blob + section->offset_bytes, section->size_bytes) == section->checksum) continue;
    sentence_text(why, "the file is damaged: the checksum of ");
    say_section(why, index, section);
    return refuse(why, MLC_BAD_CHECKSUM, " is wrong");
  }
  return MLC_OK;
}

/* The one section of `kind` for the target: its own, else the one for all. Null: none, or (*out_count > 1) two. */
static const format_section *find_section(const parts *file, uint32_t kind, uint32_t target_index,
                                          uint32_t *out_count) {
  const format_section *found = NULL;
  *out_count = 0;
  for (uint32_t index = 0; index < file->section_count; ++index) {
    const format_section *section = &file->table[index];
    if (section->kind != kind || section->target_index != target_index) continue;
    found = section;
    ++*out_count;
  }
  if (*out_count == 0 && target_index != FORMAT_ALL_TARGETS)
    return find_section(file, kind, FORMAT_ALL_TARGETS, out_count);
  return *out_count == 1 ? found : NULL;
}

/* The image of the method: a target's code sections follow the descriptions' order. */
static const format_section *find_code(const parts *file, uint32_t target_index, uint32_t *out_count) {
  const format_section *found = NULL;
  *out_count = 0;
  for (uint32_t index = 0; index < file->section_count; ++index) {
    const format_section *section = &file->table[index];
    if (section->kind != FORMAT_CODE || section->target_index != target_index) continue;
    if (*out_count == file->method_index) found = section;
    ++*out_count;
  }
  return found;
}

#define TARGET_COUNT_MAX 32

static mlc_status choose(mlc_model *model, const parts *file, const mlc_cpu *cpu, sentence *why) {
  const format_target *targets[TARGET_COUNT_MAX];
  uint32_t target_count = 0;
  for (uint32_t index = 0; index < file->section_count; ++index) {
    const format_section *section = &file->table[index];
    if (section->kind != FORMAT_TARGET) continue;
    if (section->target_index != target_count || target_count == TARGET_COUNT_MAX ||
        section->size_bytes < sizeof(format_target))
      return refuse(why, MLC_BAD_MODEL, "target sections are not numbered 0, 1, ... up to 31, or too short");
    targets[target_count] = (const format_target *)(const void *)(file->blob + section->offset_bytes);
    const mlc_status status = model_check_target(targets[target_count], why);
    if (status != MLC_OK) return status;
    ++target_count;
  }
  if (target_count == 0) return refuse(why, MLC_BAD_MODEL, "the file holds code for no machine");
  const mlc_status status = model_choose_target(targets, target_count, cpu, &model->target_index, why);
  if (status == MLC_OK) model->target = targets[model->target_index];
  return status;
}

/* `is_native`: the code is for this machine and gets mapped. */
static mlc_status take_code(mlc_model *model, const parts *file, int is_native, sentence *why) {
  uint32_t count;
  const format_section *weights = find_section(file, FORMAT_WEIGHTS, model->target_index, &count);
  if (count > 1) return refuse(why, MLC_BAD_MODEL, "a target has two weights sections");
  const format_section *code = find_code(file, model->target_index, &count);
  if (!code || count != file->meta_count)
    return refuse(why, MLC_BAD_MODEL, "a target has not one code section for each model description");
  const uint8_t *image = file->blob + code->offset_bytes;
  const mlc_status status = model_check_code(model, image, code->size_bytes, why);
  if (status != MLC_OK) return status;
  model->weights = weights ? file->blob + weights->offset_bytes : NULL;
  model->code = (const mlc_code_v1 *)(const void *)image;
  if (!is_native) return MLC_OK;
  void *mapping = NULL;
  if (port_code_map(image, code->size_bytes, &mapping) != 0)
    return refuse(why, MLC_SYSTEM, "the system gives no executable memory for the model's code");
  model->mapping = mapping;
  model->mapping_bytes = code->size_bytes;
  model_set_entries(model, (const uint8_t *)mapping);
  return MLC_OK;
}

static mlc_status read_options(const mlc_view_options *options, mlc_cpu *cpu, uint32_t *out_verify, sentence *why) {
  *out_verify = MLC_VERIFY_ALL;
  *why = sentence_begin(NULL, 0);
  memset(cpu, 0, sizeof *cpu);
  cpu->struct_size = sizeof *cpu;
  if (options) {
    if (options->struct_size != sizeof *options || options->reserved != 0 || options->verify > MLC_VERIFY_HEADER)
      return MLC_BAD_ARGUMENT;
    *why = sentence_begin(options->detail, options->detail ? options->detail_bytes : 0);
    *out_verify = options->verify;
    if (options->cpu) {
      if (options->cpu->struct_size != sizeof *cpu || options->cpu->reserved != 0)
        return refuse(why, MLC_BAD_ARGUMENT, "options.cpu has another size or a reserved field set");
      *cpu = *options->cpu;
      return MLC_OK;
    }
  }
  return mlc_cpu_query(cpu);
}

static int is_aligned(const void *address, uint64_t alignment) { return (uintptr_t)address % alignment == 0; }

mlc_status mlc_model_view(const void *blob, uint64_t size_bytes, const mlc_view_options *options,
                          mlc_model_storage *storage, const mlc_model **out_model) {
  mlc_cpu cpu;
  uint32_t verify;
  sentence why;
  mlc_status status = read_options(options, &cpu, &verify, &why);
  if (status != MLC_OK) return status;
  if (!blob || !storage || !out_model || !is_aligned(storage, 8) || !is_aligned(blob, FORMAT_ALIGN_BYTES) ||
      size_bytes > (uint64_t)INT64_MAX)
    return refuse(&why, MLC_BAD_ARGUMENT, "a pointer is null, or the file is not at an address aligned to 64 bytes");
  status = check_header((const uint8_t *)blob, size_bytes, &why);
  if (status != MLC_OK) return status;

  const format_header *header = (const format_header *)blob;
  parts file = {(const uint8_t *)blob, (const format_section *)(const void *)(header + 1), header->section_count, NULL,
                0, 0, options ? options->method : NULL, NULL, NULL};
  mlc_model *model = (mlc_model *)(void *)storage;
  memset(storage, 0, sizeof *storage);
  status = check_layout(&file, size_bytes, &why);
  if (status == MLC_OK) status = check_checksums(&file, verify, &why);
  if (status == MLC_OK)
    status = model_read_meta(model, file.blob + file.meta->offset_bytes, file.meta->size_bytes, &why);
  if (status == MLC_OK && file.state)
    status = model_set_initial_state(model, file.blob + file.state->offset_bytes, file.state->size_bytes, &why);
  if (status == MLC_OK) status = choose(model, &file, &cpu, &why);
  if (status == MLC_OK) status = take_code(model, &file, !options || !options->cpu, &why);
  if (status != MLC_OK) return status;
  if (file.info) {
    model->info = file.blob + file.info->offset_bytes;
    model->info_bytes = file.info->size_bytes;
  }
  model->sections = file.table;
  model->section_count = file.section_count;
  *out_model = model;
  return MLC_OK;
}

mlc_status mlc_model_view_static(const mlc_static_model *parts_in, const mlc_view_options *options,
                                 mlc_model_storage *storage, const mlc_model **out_model) {
  mlc_cpu cpu;
  uint32_t verify;
  sentence why;
  mlc_status status = read_options(options, &cpu, &verify, &why);
  if (status != MLC_OK) return status;
  if (!parts_in || !storage || !out_model || !is_aligned(storage, 8))
    return refuse(&why, MLC_BAD_ARGUMENT, "a pointer is null or misaligned");
  if (parts_in->struct_size != sizeof *parts_in || !parts_in->meta || !parts_in->target || !parts_in->code ||
      !is_aligned(parts_in->meta, 8) || !is_aligned(parts_in->target, 8) || !is_aligned(parts_in->code, 4) ||
      !is_aligned(parts_in->weights, FORMAT_ALIGN_BYTES) || (!parts_in->state && parts_in->state_bytes != 0))
    return refuse(&why, MLC_BAD_ARGUMENT, "a part of the static model is null or misaligned");

  mlc_model *model = (mlc_model *)(void *)storage;
  memset(storage, 0, sizeof *storage);
  const format_target *target = (const format_target *)parts_in->target;
  status = model_read_meta(model, (const uint8_t *)parts_in->meta, parts_in->meta_bytes, &why);
  if (status == MLC_OK)
    status = model_set_initial_state(model, (const uint8_t *)parts_in->state, parts_in->state_bytes, &why);
  if (status == MLC_OK) status = model_check_target(target, &why);
  if (status == MLC_OK) status = model_choose_target(&target, 1, &cpu, &model->target_index, &why);
  if (status != MLC_OK) return status;
  model->target = target;
  const uint8_t *image = (const uint8_t *)(const void *)parts_in->code;
  status = model_check_code(model, image, parts_in->code->image_bytes, &why);
  if (status != MLC_OK) return status;
  model->weights = (const uint8_t *)parts_in->weights;
  model->code = parts_in->code;
  if (!options || !options->cpu) model_set_entries(model, image);
  *out_model = model;
  return MLC_OK;
}

void mlc_large_pages(void *memory, uint64_t size_bytes) { port_large_pages(memory, size_bytes); }

void mlc_model_close(const mlc_model *model) {
  if (!model) return;
  mlc_model *storage = (mlc_model *)(uintptr_t)model; /* the caller's storage, const only to other readers */
  if (storage->mapping) port_code_unmap(storage->mapping, storage->mapping_bytes);
  memset(storage, 0, sizeof *storage);
}

uint32_t mlc_model_method_count(const mlc_model *model) {
  uint32_t count = 0;
  for (uint32_t index = 0; index < model->section_count; ++index) count += model->sections[index].kind == FORMAT_META;
  return model->sections ? count : 1;
}

const char *mlc_model_method_name(const mlc_model *model, uint32_t index) {
  if (!model->sections) return index == 0 ? "meta" : NULL;
  for (uint32_t at = 0; at < model->section_count; ++at)
    if (model->sections[at].kind == FORMAT_META && index-- == 0) return model->sections[at].name;
  return NULL;
}

uint32_t mlc_model_input_count(const mlc_model *model) { return model->input_count; }

uint32_t mlc_model_output_count(const mlc_model *model) { return model->output_count; }

uint32_t mlc_model_state_count(const mlc_model *model) { return model->state_count; }

uint32_t mlc_model_symbol_count(const mlc_model *model) { return model->symbol_count; }

uint32_t mlc_model_kernel_count(const mlc_model *model) { return model->code->kernel_count; }

uint32_t mlc_model_target_index(const mlc_model *model) { return model->target_index; }

const char *mlc_model_target_name(const mlc_model *model) { return model->target->name; }

const void *mlc_model_info(const mlc_model *model, uint64_t *out_size_bytes) {
  *out_size_bytes = model->info_bytes;
  return model->info;
}

static void fill_info(const mlc_model *model, uint32_t tensor_index, mlc_tensor_info *info) {
  const format_tensor *tensor = &model->tensors[tensor_index];
  memset(info, 0, sizeof *info);
  info->struct_size = sizeof *info;
  info->dtype = tensor->dtype;
  info->rank = tensor->rank;
  info->name = model_tensor_name(model, tensor_index);
  memcpy(info->dims, model->dims + tensor->dim_first, tensor->rank * sizeof(int64_t));
}

mlc_status mlc_model_input(const mlc_model *model, uint32_t index, mlc_tensor_info *out_info) {
  if (!model || !out_info || out_info->struct_size != sizeof *out_info || index >= model->input_count)
    return MLC_BAD_ARGUMENT;
  fill_info(model, index, out_info);
  return MLC_OK;
}

mlc_status mlc_model_output(const mlc_model *model, uint32_t index, mlc_tensor_info *out_info) {
  if (!model || !out_info || out_info->struct_size != sizeof *out_info || index >= model->output_count)
    return MLC_BAD_ARGUMENT;
  fill_info(model, model->input_count + index, out_info);
  return MLC_OK;
}

mlc_status mlc_model_state(const mlc_model *model, uint32_t index, mlc_tensor_info *out_info) {
  if (!model || !out_info || out_info->struct_size != sizeof *out_info || index >= model->state_count)
    return MLC_BAD_ARGUMENT;
  fill_info(model, model->input_count + model->output_count + index, out_info);
  return MLC_OK;
}

mlc_status mlc_model_symbol(const mlc_model *model, uint32_t index, mlc_symbol_info *out_info) {
  if (!model || !out_info || out_info->struct_size != sizeof *out_info || index >= model->symbol_count)
    return MLC_BAD_ARGUMENT;
  out_info->reserved = 0;
  out_info->name = model_symbol_name(model, index);
  out_info->min = model->symbols[index].min;
  out_info->max = model->symbols[index].max;
  return MLC_OK;
}
