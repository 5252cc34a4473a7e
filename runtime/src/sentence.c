/* sentence.c - builds messages by appending text, numbers and names. */
#include "sentence.h"

#define NAME_BYTES_MAX 64

sentence sentence_begin(char *text, uint32_t capacity_bytes) {
  sentence line = {capacity_bytes > 0 ? text : 0, capacity_bytes, 0};
  if (line.text) line.text[0] = '\0';
  return line;
}

static void put(sentence *line, char character) {
  if (!line->text || line->used_bytes + 1 >= line->capacity_bytes) return;
  line->text[line->used_bytes++] = character;
  line->text[line->used_bytes] = '\0';
}

void sentence_text(sentence *line, const char *text) {
  while (*text) put(line, *text++);
}

void sentence_number(sentence *line, int64_t value) {
  char digits[20];
  int count = 0;
  /* Negating in unsigned arithmetic: INT64_MIN has no positive twin. */
  uint64_t rest = value < 0 ? (uint64_t)0 - (uint64_t)value : (uint64_t)value;
  do {
    digits[count++] = (char)('0' + rest % 10);
    rest /= 10;
  } while (rest > 0);
  if (value < 0) put(line, '-');
  while (count > 0) put(line, digits[--count]);
}

void sentence_name(sentence *line, const char *name) {
  int index = 0;
  put(line, '\'');
  for (; name[index] && index < NAME_BYTES_MAX; ++index) {
    const unsigned char byte = (unsigned char)name[index];
    put(line, byte < 0x20 || byte == 0x7f ? '?' : name[index]);
  }
  if (name[index]) sentence_text(line, "...");
  put(line, '\'');
}
