/* fuzz_model.c - mutated artifacts must be refused or work; nothing may crash. Run it under sanitizers.
 *
 *   fuzz_model FOLDER [COUNT [SEED]]       COUNT mutations (2000), of every .mlc the tests use
 *
 * Half of the mutations have their checksums made anew, so that what stands behind them is reached too. Code is never
 * run from a file whose code section, or the description it reads by, was touched: a checksum is no proof of intent. */
#define _POSIX_C_SOURCE 200809L
#include "affine.h"

enum { HEADER_BYTES = 64, ENTRY_BYTES = 64, CODE = 3, FILE_COUNT = 3 };

static uint64_t random_state;

/* xorshift64* (Marsaglia 2003; Vigna 2016). */
static uint64_t random_below(uint64_t bound) {
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return (random_state * UINT64_C(0x2545F4914F6CDD1D) >> 16) % bound;
}

static uint32_t read_u32(const uint8_t *bytes) {
  uint32_t value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

static uint64_t read_u64(const uint8_t *bytes) {
  uint64_t value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

/* Makes every checksum that can be found right again, and now and then the total size. */
static void repair(file_bytes *file) {
  uint64_t zero = 0, checksum;
  if (file->size_bytes < HEADER_BYTES) return;
  if (random_below(2)) memcpy(file->bytes + 16, &file->size_bytes, sizeof file->size_bytes);
  const uint64_t section_count = read_u32(file->bytes + 12);
  if (section_count > (file->size_bytes - HEADER_BYTES) / ENTRY_BYTES) return;
  for (uint64_t index = 0; index < section_count; ++index) {
    uint8_t *entry = file->bytes + HEADER_BYTES + index * ENTRY_BYTES;
    const uint64_t offset_bytes = read_u64(entry + 8), size_bytes = read_u64(entry + 16);
    if (offset_bytes > file->size_bytes || size_bytes > file->size_bytes - offset_bytes) continue;
    checksum = mlc_checksum(file->bytes + offset_bytes, size_bytes);
    memcpy(entry + 24, &checksum, sizeof checksum);
  }
  memcpy(file->bytes + 24, &zero, sizeof zero);
  checksum = mlc_checksum(file->bytes, HEADER_BYTES + section_count * ENTRY_BYTES);
  memcpy(file->bytes + 24, &checksum, sizeof checksum);
}

static void put_number(uint8_t *bytes, uint64_t room_bytes) {
  static const uint64_t edges[] = {0, 1, 2, 7, 16, 17, 63, 64, 65, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000,
                                   UINT64_C(0x7fffffffffffffff), UINT64_C(0x8000000000000000), UINT64_MAX};
  const uint64_t value = edges[random_below(sizeof edges / sizeof edges[0])] + random_below(3) - 1;
  const uint64_t width = random_below(2) ? 4 : 8;
  memcpy(bytes, &value, (size_t)(width < room_bytes ? width : room_bytes));
}

static void mutate_once(file_bytes *file, const file_bytes *other) {
  const uint64_t at = random_below(file->size_bytes);
  const uint64_t room_bytes = file->size_bytes - at;
  switch (random_below(7)) {
    case 0:
      file->bytes[at] ^= (uint8_t)(1 << random_below(8));
      break;
    case 1:
      file->bytes[at] = (uint8_t)random_below(256);
      break;
    case 2: /* a field's worth of an edge value, where fields start */
      put_number(file->bytes + at / 4 * 4, file->size_bytes - at / 4 * 4);
      break;
    case 3: { /* the header and the tables in front, where the structure is */
      const uint64_t front = random_below(file->size_bytes < 640 ? file->size_bytes : 640) / 4 * 4;
      put_number(file->bytes + front, file->size_bytes - front);
      break;
    }
    case 4: /* cut */
      if (at > 0) file->size_bytes = at < 64 || random_below(2) ? at : at / 64 * 64;
      break;
    case 5: { /* splice from another file */
      const uint64_t from = random_below(other->size_bytes);
      uint64_t length = random_below(256) + 1;
      if (length > room_bytes) length = room_bytes;
      if (length > other->size_bytes - from) length = other->size_bytes - from;
      memcpy(file->bytes + at, other->bytes + from, (size_t)length);
      break;
    }
    default: { /* move within */
      const uint64_t from = random_below(file->size_bytes);
      uint64_t length = random_below(128) + 1;
      if (length > room_bytes) length = room_bytes;
      if (length > file->size_bytes - from) length = file->size_bytes - from;
      memmove(file->bytes + at, file->bytes + from, (size_t)length);
    }
  }
}

/* Asks everything that can be asked of a model without running its code. */
static void question(const mlc_model *model) {
  mlc_tensor_info info = {.struct_size = sizeof info};
  mlc_symbol_info symbol = {.struct_size = sizeof symbol};
  mlc_need need = {.struct_size = sizeof need};
  uint64_t info_bytes, sum = 0;
  for (uint32_t index = 0; index < mlc_model_input_count(model); ++index) {
    CHECK_STATUS(MLC_OK, mlc_model_input(model, index, &info));
    sum += strlen(info.name) + (uint64_t)info.dims[info.rank ? info.rank - 1 : 0];
  }
  for (uint32_t index = 0; index < mlc_model_output_count(model); ++index) {
    CHECK_STATUS(MLC_OK, mlc_model_output(model, index, &info));
    sum += strlen(info.name);
  }
  for (uint32_t index = 0; index < mlc_model_symbol_count(model); ++index) {
    CHECK_STATUS(MLC_OK, mlc_model_symbol(model, index, &symbol));
    sum += strlen(symbol.name) + (uint64_t)symbol.max;
  }
  const uint8_t *text = mlc_model_info(model, &info_bytes);
  for (uint64_t at = 0; at < info_bytes; ++at) sum += text[at];
  sum += strlen(mlc_model_target_name(model)) + mlc_model_kernel_count(model);
  CHECK_STATUS(MLC_OK, mlc_model_need(model, &need));

  void *memory = aligned_memory(need.session_bytes);
  mlc_session *session;
  CHECK_STATUS(MLC_OK, mlc_session_init(model, memory, need.session_bytes, &session));
  static _Alignas(4096) uint8_t data[8192];
  for (uint32_t index = 0; index < mlc_model_input_count(model); ++index) {
    CHECK_STATUS(MLC_OK, mlc_model_input(model, index, &info));
    mlc_tensor tensor = {sizeof tensor, info.dtype, info.rank, 0, data, sizeof data, {0}};
    for (uint32_t axis = 0; axis < info.rank; ++axis) tensor.shape[axis] = info.dims[axis] >= 0 ? info.dims[axis] : 3;
    const mlc_status status = mlc_session_bind_input(session, index, &tensor);
    CHECK((status == MLC_OK) == (mlc_session_detail(session)[0] == '\0'));
  }
  CHECK(mlc_session_run(session) == MLC_BAD_STATE);
  free(memory);
  CHECK(sum != 1); /* keeps the reads */
}

/* Whether description, targets and code are those of `original`; then the code may run. */
static int is_code_intact(const file_bytes *file, const file_bytes *original) {
  if (file->size_bytes != original->size_bytes) return 0;
  const uint64_t section_count = read_u32(original->bytes + 12);
  for (uint64_t index = 0; index < section_count; ++index) {
    const uint64_t at = HEADER_BYTES + index * ENTRY_BYTES;
    const uint64_t offset_bytes = read_u64(original->bytes + at + 8), size_bytes = read_u64(original->bytes + at + 16);
    if (memcmp(file->bytes + at, original->bytes + at, 24) != 0) return 0;
    if (read_u32(original->bytes + at) > CODE) continue;
    if (memcmp(file->bytes + offset_bytes, original->bytes + offset_bytes, (size_t)size_bytes) != 0) return 0;
  }
  return 1;
}

static void try_file(const file_bytes *file, const file_bytes *original, uint64_t counts[2]) {
  static affine self;
  char detail[80]; /* shorter than some sentences, so that cutting is tested */
  const mlc_view_options options = {sizeof options, (uint32_t)random_below(2), NULL, detail, sizeof detail, 0, NULL};
  mlc_model_storage storage;
  const mlc_model *model = NULL;
  detail[0] = '\0';
  const mlc_status status = mlc_model_view(file->bytes, file->size_bytes, &options, &storage, &model);
  counts[status == MLC_OK] += 1;
  if (status != MLC_OK) {
    CHECK(model == NULL && detail[0] != '\0' && memchr(detail, '\0', sizeof detail));
    CHECK(strcmp(mlc_status_text(status), "unknown status") != 0);
    return;
  }
  question(model);
  if (is_code_intact(file, original)) {
    affine_open(&self, model);
    affine_bind(&self, 5);
    CHECK_STATUS(MLC_OK, mlc_session_run(self.session));
    free(self.memory);
  }
  mlc_model_close(model);
}

int main(int argc, char **argv) {
  static const char *const names[FILE_COUNT] = {"affine.mlc", "mixed.mlc", "foreign.mlc"};
  file_bytes originals[FILE_COUNT];
  uint64_t counts[2] = {0, 0};
  CHECK(argc > 1);
  const long count = argc > 2 ? atol(argv[2]) : 2000;
  random_state = argc > 3 ? strtoull(argv[3], NULL, 10) : 20240229;
  CHECK(random_state != 0);
  for (int index = 0; index < FILE_COUNT; ++index) originals[index] = read_file(argv[1], names[index]);
  for (long round = 0; round < count; ++round) {
    const file_bytes *original = &originals[random_below(8) < 7 ? random_below(2) : 2];
    file_bytes file = {aligned_memory(original->size_bytes), original->size_bytes};
    memcpy(file.bytes, original->bytes, (size_t)original->size_bytes);
    const uint64_t edit_count = 1 + random_below(3);
    for (uint64_t edit = 0; edit < edit_count; ++edit) mutate_once(&file, &originals[random_below(FILE_COUNT)]);
    if (random_below(2)) repair(&file);
    file_bytes exact = {aligned_memory(file.size_bytes), file.size_bytes}; /* ends where the sanitizer looks */
    memcpy(exact.bytes, file.bytes, (size_t)file.size_bytes);
    try_file(&exact, original, counts);
    free(exact.bytes);
    free(file.bytes);
  }
  printf("%ld mutations: %llu refused, %llu accepted\n", count, (unsigned long long)counts[0],
         (unsigned long long)counts[1]);
  for (int index = 0; index < FILE_COUNT; ++index) free(originals[index].bytes);
  return 0;
}
