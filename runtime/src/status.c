/* status.c - texts of statuses and dtypes, all from the lists in mlc_rt.h. */
#include "mlc_rt.h"

uint32_t mlc_abi_version(void) { return MLC_ABI_VERSION; }

const char *mlc_status_text(mlc_status status) {
  switch (status) {
#define TEXT_CASE(name, value, text) \
  case value:                        \
    return text;
    MLC_STATUS_LIST(TEXT_CASE)
#undef TEXT_CASE
    default:
      return "unknown status";
  }
}

const char *mlc_status_name(mlc_status status) {
  switch (status) {
#define NAME_CASE(name, value, text) \
  case value:                        \
    return #name;
    MLC_STATUS_LIST(NAME_CASE)
#undef NAME_CASE
    default:
      return "UNKNOWN";
  }
}

const char *mlc_dtype_name(uint32_t dtype) {
  switch (dtype) {
#define NAME_CASE(name, text, bytes) \
  case MLC_DTYPE_##name:             \
    return text;
    MLC_DTYPE_LIST(NAME_CASE)
#undef NAME_CASE
    default:
      return 0;
  }
}

uint32_t mlc_dtype_bytes(uint32_t dtype) {
  switch (dtype) {
#define BYTES_CASE(name, text, bytes) \
  case MLC_DTYPE_##name:              \
    return bytes;
    MLC_DTYPE_LIST(BYTES_CASE)
#undef BYTES_CASE
    default:
      return 0;
  }
}
