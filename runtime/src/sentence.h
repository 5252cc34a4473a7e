/* sentence.h - builds the one-sentence messages of the runtime in storage of the caller, without stdio. */
#ifndef MLC_SENTENCE_H
#define MLC_SENTENCE_H

#include <stdint.h>

typedef struct sentence {
  char *text; /* null: everything is dropped */
  uint32_t capacity_bytes;
  uint32_t used_bytes;
} sentence;

/* Starts an empty sentence in `text`; keeps it ended by a zero byte from here on, cutting what does not fit. */
sentence sentence_begin(char *text, uint32_t capacity_bytes);
void sentence_text(sentence *line, const char *text);
void sentence_number(sentence *line, int64_t value);
/* A name from a file in quotes: cut after 64 bytes, control characters shown as '?'. */
void sentence_name(sentence *line, const char *name);

#endif
