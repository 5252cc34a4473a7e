/* test_static.c - a model whose parts the program holds itself, as firmware does. The parts come from a file here; only
 * the code must be executable, which the test arranges with mmap. */
#define _GNU_SOURCE
#include "affine.h"

#include <sys/mman.h>

static const uint8_t *find(const file_bytes *file, uint32_t kind, uint64_t *out_bytes) {
  uint32_t section_count;
  memcpy(&section_count, file->bytes + 12, sizeof section_count);
  for (uint32_t index = 0; index < section_count; ++index) {
    const uint8_t *entry = file->bytes + 64 + 64 * (size_t)index;
    uint32_t found;
    uint64_t offset_bytes;
    memcpy(&found, entry, sizeof found);
    memcpy(&offset_bytes, entry + 8, sizeof offset_bytes);
    memcpy(out_bytes, entry + 16, sizeof *out_bytes);
    if (found == kind) return file->bytes + offset_bytes;
  }
  return NULL;
}

int main(int argc, char **argv) {
  CHECK(argc > 1);
  const file_bytes file = read_file(argv[1], "affine.mlc");
  uint64_t meta_bytes = 0, target_bytes = 0, code_bytes = 0, weights_bytes = 0;
  const uint8_t *meta = find(&file, 1, &meta_bytes), *target = find(&file, 2, &target_bytes);
  const uint8_t *image = find(&file, 3, &code_bytes), *weights = find(&file, 4, &weights_bytes);
  void *code = mmap(NULL, (size_t)code_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(code != MAP_FAILED);
  memcpy(code, image, (size_t)code_bytes);
  __builtin___clear_cache((char *)code, (char *)code + code_bytes);
  CHECK(mprotect(code, (size_t)code_bytes, PROT_READ | PROT_EXEC) == 0);

  mlc_static_model parts = {sizeof parts, (uint32_t)meta_bytes, meta, target, (const mlc_code_v1 *)code, weights,
                            weights_bytes, NULL, 0};
  mlc_model_storage storage;
  const mlc_model *model = NULL;
  affine self;
  uint64_t info_bytes;
  CHECK_STATUS(MLC_OK, mlc_model_view_static(&parts, NULL, &storage, &model));
  CHECK(mlc_model_info(model, &info_bytes) == NULL && info_bytes == 0);
  affine_open(&self, model);
  affine_bind(&self, 11);
  CHECK_STATUS(MLC_OK, mlc_session_run(self.session));
  affine_check(&self, 11);
  free(self.memory);
  mlc_model_close(model);

  model = NULL;
  parts.meta_bytes = 32;
  CHECK_STATUS(MLC_BAD_MODEL, mlc_model_view_static(&parts, NULL, &storage, &model));
  parts.struct_size = 4;
  CHECK_STATUS(MLC_BAD_ARGUMENT, mlc_model_view_static(&parts, NULL, &storage, &model));
  CHECK(model == NULL);
  munmap(code, (size_t)code_bytes);
  free(file.bytes);
  return 0;
}
