/* test_checksum.c - XXH64 against values published with the algorithm; in pieces it is the same. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

int main(void) {
  static const char sentence[] = "Nobody inspects the spammish repetition";
  uint8_t bytes[257];
  CHECK(mlc_checksum("", 0) == UINT64_C(0xEF46DB3751D8E999));
  CHECK(mlc_checksum(NULL, 0) == UINT64_C(0xEF46DB3751D8E999));
  CHECK(mlc_checksum("a", 1) == UINT64_C(0xD24EC4F1A98C6E5B));
  CHECK(mlc_checksum("abc", 3) == UINT64_C(0x44BC2CF5AD770999));
  CHECK(mlc_checksum(sentence, sizeof sentence - 1) == UINT64_C(0xFBCEA83C8A378BF1));

  for (uint32_t index = 0; index < sizeof bytes; ++index) bytes[index] = (uint8_t)(index * 37 + 11);
  for (uint32_t size = 0; size <= sizeof bytes; ++size) {
    const uint64_t whole = mlc_checksum(bytes, size);
    for (uint32_t step = 1; step < 70; step += 3) {
      mlc_checksum_state state;
      mlc_checksum_begin(&state);
      for (uint32_t at = 0; at < size; at += step)
        mlc_checksum_update(&state, bytes + at, size - at < step ? size - at : step);
      CHECK(mlc_checksum_end(&state) == whole);
    }
  }
  return 0;
}
