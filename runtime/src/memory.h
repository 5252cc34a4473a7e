/* memory.h - the three functions of <string.h> that the runtime needs; a freestanding compiler has no such header. */
#ifndef MLC_MEMORY_H
#define MLC_MEMORY_H

#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t count);
void *memset(void *to, int value, size_t count);
int memcmp(const void *left, const void *right, size_t count);

#endif
