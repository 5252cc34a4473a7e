/* test_model.c - viewing files: what they say, and what is refused with which words. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

static char detail[256];

static mlc_status view(const file_bytes *file, uint32_t verify, const mlc_cpu *cpu, mlc_model_storage *storage,
                       const mlc_model **out_model) {
  const mlc_view_options options = {sizeof options, verify, cpu, detail, sizeof detail, 0, NULL};
  detail[0] = '\0';
  return mlc_model_view(file->bytes, file->size_bytes, &options, storage, out_model);
}

static mlc_status try_view(const file_bytes *file, uint32_t verify) {
  mlc_model_storage storage;
  const mlc_model *model = NULL;
  const mlc_status status = view(file, verify, NULL, &storage, &model);
  CHECK((status == MLC_OK) == (model != NULL));
  CHECK((status == MLC_OK) == (detail[0] == '\0'));
  mlc_model_close(model);
  return status;
}

static void test_description(const file_bytes *file) {
  mlc_model_storage storage;
  const mlc_model *model;
  mlc_tensor_info info = {.struct_size = sizeof info};
  mlc_symbol_info symbol = {.struct_size = sizeof symbol};
  mlc_need need = {.struct_size = sizeof need};
  uint64_t info_bytes;
  CHECK_STATUS(MLC_OK, view(file, MLC_VERIFY_ALL, NULL, &storage, &model));
  CHECK(mlc_model_input_count(model) == 2 && mlc_model_output_count(model) == 1);
  CHECK(mlc_model_symbol_count(model) == 1 && mlc_model_kernel_count(model) == 2);
  CHECK_STATUS(MLC_OK, mlc_model_input(model, 0, &info));
  CHECK_TEXT("x", info.name);
  CHECK(info.dtype == MLC_DTYPE_F32 && info.rank == 2 && info.dims[0] == -1 && info.dims[1] == 8);
  CHECK_STATUS(MLC_OK, mlc_model_output(model, 0, &info));
  CHECK_TEXT("y", info.name);
  CHECK_STATUS(MLC_BAD_ARGUMENT, mlc_model_input(model, 2, &info));
  CHECK_STATUS(MLC_BAD_ARGUMENT, mlc_model_output(model, 1, &info));
  CHECK_STATUS(MLC_OK, mlc_model_symbol(model, 0, &symbol));
  CHECK_TEXT("B", symbol.name);
  CHECK(symbol.min == 1 && symbol.max == 64);
  CHECK_STATUS(MLC_OK, mlc_model_need(model, &need));
  CHECK(need.arena_bytes_max == 2048 && need.arena_align_bytes == 64 && need.io_align_bytes == 16);
  CHECK(mlc_model_info(model, &info_bytes) != NULL && info_bytes % 64 == 0);
  mlc_model_close(model);
}

static void test_refusals(const file_bytes *good, const file_bytes *foreign, const file_bytes *mixed) {
  file_bytes file = {good->bytes, 40};
  CHECK_STATUS(MLC_BAD_MODEL, try_view(&file, MLC_VERIFY_ALL));
  CHECK_TEXT("not an mlc artifact: it does not start with MLCMODEL", detail);
  file.size_bytes = good->size_bytes - 64;
  CHECK_STATUS(MLC_BAD_MODEL, try_view(&file, MLC_VERIFY_ALL));
  CHECK(strstr(detail, "the file is truncated: it has ") == detail);
  CHECK_STATUS(MLC_UNSUPPORTED_CPU, try_view(foreign, MLC_VERIFY_ALL));
  CHECK(strstr(detail, "this artifact is for ") == detail);
  CHECK_STATUS(MLC_OK, try_view(mixed, MLC_VERIFY_ALL));

  uint8_t *copy = aligned_memory(good->size_bytes);
  memcpy(copy, good->bytes, (size_t)good->size_bytes);
  file.bytes = copy;
  file.size_bytes = good->size_bytes;
  copy[8] = 9;
  CHECK_STATUS(MLC_ABI_MISMATCH, try_view(&file, MLC_VERIFY_ALL));
  CHECK_TEXT("the file has format version 9; this library reads version 1", detail);
  free(copy);
}

/* Every bit of a file counts, and every length but the right one is refused. */
static void test_every_bit(const file_bytes *good) {
  for (uint64_t bit = 0; bit < good->size_bytes * 8; ++bit) {
    good->bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    CHECK(try_view(good, MLC_VERIFY_ALL) != MLC_OK);
    good->bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
  }
  for (uint64_t size_bytes = 0; size_bytes < good->size_bytes; ++size_bytes) {
    file_bytes part = {aligned_memory(size_bytes), size_bytes};
    memcpy(part.bytes, good->bytes, (size_t)size_bytes);
    CHECK(try_view(&part, MLC_VERIFY_ALL) != MLC_OK);
    free(part.bytes);
  }
  CHECK_STATUS(MLC_OK, try_view(good, MLC_VERIFY_ALL));
}

/* MLC_VERIFY_HEADER skips the weights' checksum and no other. Section kinds are a u32 each 64 bytes from byte 64 on. */
static void test_verify_header(const file_bytes *good) {
  uint32_t section_count;
  int weights_count = 0;
  memcpy(&section_count, good->bytes + 12, sizeof section_count);
  for (uint32_t index = 0; index < section_count; ++index) {
    uint32_t kind;
    uint64_t offset_bytes;
    memcpy(&kind, good->bytes + 64 + 64 * index, sizeof kind);
    memcpy(&offset_bytes, good->bytes + 64 + 64 * index + 8, sizeof offset_bytes);
    good->bytes[offset_bytes + 5] ^= 16;
    CHECK_STATUS(MLC_BAD_CHECKSUM, try_view(good, MLC_VERIFY_ALL));
    CHECK(strstr(detail, "the file is damaged: the checksum of section ") == detail);
    CHECK_STATUS(kind == 4 ? MLC_OK : MLC_BAD_CHECKSUM, try_view(good, MLC_VERIFY_HEADER));
    weights_count += kind == 4;
    good->bytes[offset_bytes + 5] ^= 16;
  }
  CHECK(weights_count == 1);
}

/* Another machine's artifact can be described, not run. */
static void test_other_cpu(const file_bytes *mixed) {
  mlc_cpu cpu = {.struct_size = sizeof cpu};
  mlc_model_storage storage;
  const mlc_model *model = NULL;
  mlc_session *session = NULL;
  CHECK_STATUS(MLC_OK, mlc_cpu_query(&cpu));
  cpu.arch = cpu.arch == MLC_ARCH_X86_64 ? MLC_ARCH_AARCH64 : MLC_ARCH_X86_64;
  CHECK_STATUS(MLC_OK, view(mixed, MLC_VERIFY_ALL, &cpu, &storage, &model));
  CHECK(mlc_model_target_index(model) == 0 && mlc_model_kernel_count(model) == 2);
  void *memory = aligned_memory(4096);
  CHECK_STATUS(MLC_UNSUPPORTED_CPU, mlc_session_init(model, memory, 4096, &session));
  CHECK(session == NULL);
  free(memory);
  mlc_model_close(model);
}

int main(int argc, char **argv) {
  CHECK(argc > 1);
  const file_bytes good = read_file(argv[1], "affine.mlc");
  const file_bytes foreign = read_file(argv[1], "foreign.mlc");
  const file_bytes mixed = read_file(argv[1], "mixed.mlc");
  CHECK(mlc_abi_version() == MLC_ABI_VERSION);
  CHECK_TEXT("unknown status", mlc_status_text(77));
  CHECK(mlc_dtype_bytes(MLC_DTYPE_BF16) == 2 && mlc_dtype_bytes(99) == 0 && mlc_dtype_name(99) == NULL);
  test_description(&good);
  test_refusals(&good, &foreign, &mixed);
  test_every_bit(&good);
  test_verify_header(&good);
  test_other_cpu(&mixed);
  free(good.bytes), free(foreign.bytes), free(mixed.bytes);
  return 0;
}
