/* format.h - the artifact file's structures, docs/format.md version 1. All little endian; sizes in bytes. */
#ifndef MLC_FORMAT_H
#define MLC_FORMAT_H

#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the runtime reads the file in place and needs a little endian machine"
#endif

#define FORMAT_MAGIC "MLCMODEL"
#define FORMAT_MAJOR 1
#define FORMAT_ALIGN_BYTES 64
#define FORMAT_SECTION_COUNT_MAX 4096
#define FORMAT_ALL_TARGETS UINT32_C(0xffffffff)
#define FORMAT_META_VERSION 1
#define FORMAT_TARGET_VERSION 1
#define FORMAT_ALIGNMENT_MAX 4096

enum format_kind {
  FORMAT_META = 1,
  FORMAT_TARGET = 2,
  FORMAT_CODE = 3,
  FORMAT_WEIGHTS = 4,
  FORMAT_INFO = 5,
  FORMAT_SIGNATURE = 6,
  FORMAT_STATE = 7
};

typedef struct format_header {
  char magic[8];
  uint16_t major;
  uint16_t minor;
  uint32_t section_count;
  uint64_t total_bytes;
  uint64_t table_checksum; /* of header and table, this field taken as zero */
  uint8_t reserved[32];
} format_header;

typedef struct format_section {
  uint32_t kind;
  uint32_t target_index;
  uint64_t offset_bytes;
  uint64_t size_bytes;
  uint64_t checksum;
  char name[32]; /* ends in a zero byte */
} format_section;

typedef struct format_meta {
  uint32_t version;
  uint32_t symbol_count;
  uint32_t input_count;
  uint32_t output_count;
  uint32_t state_count;
  uint32_t dim_count;
  uint32_t text_bytes;
  uint32_t reserved;
  uint32_t symbol_offset; /* offsets from the section's start */
  uint32_t tensor_offset; /* inputs, then outputs, then states */
  uint32_t dim_offset;
  uint32_t text_offset;
  uint8_t reserved2[16];
} format_meta;

typedef struct format_symbol {
  uint32_t name_offset; /* in text */
  uint32_t name_bytes;  /* a zero byte follows */
  int64_t min;
  int64_t max;
} format_symbol;

typedef struct format_tensor {
  uint32_t name_offset;
  uint32_t name_bytes;
  uint32_t dtype;
  uint32_t rank;
  uint32_t dim_first; /* the sum of the ranks before it */
  uint32_t reserved;
  uint64_t reserved2;
} format_tensor;

typedef struct format_target {
  uint32_t version;
  uint32_t arch;
  uint64_t features;
  uint32_t sve_bits; /* 0: any */
  uint32_t code_abi;
  uint32_t arena_align_bytes;
  uint32_t io_align_bytes;
  int64_t arena_bytes_max; /* -1: not known ahead */
  uint8_t reserved[24];
  char name[64]; /* ends in a zero byte */
} format_target;

#endif
