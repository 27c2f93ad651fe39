/* Shared by the files of the stand-in: the memory of the card, the log of what was launched, and error codes. */
#pragma once
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>

enum {
  OK = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  INVALID_DEVICE = 101,
  INVALID_HANDLE = 400,
  SYMBOL_NOT_FOUND = 500,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALID = 901,
};

/* Bytes of each card: STANDIN_MEMORY, or those of an H100 of 80 GB. */
size_t standin_total(void);
/* Take bytes of a card: OK or OUT_OF_MEMORY. */
int standin_take(int device, size_t nbytes);
void standin_give(int device, size_t nbytes);
/* Bytes of this thread's card taken now, and at most since the last standin_reset_peak(). */
size_t standin_used(void);
size_t standin_peak(void);
void standin_reset_peak(void);

/* Addresses of the card, `nbytes` of them, aligned as those of segments; 0 if there are none. The program cannot read or
 * write there, as on a real card; what lies there is kept at standin_kept(). */
char *standin_reserve(size_t nbytes);
void standin_release(char *at, size_t nbytes);
/* Where the bytes of an address are: the address itself, if it is one of the host. */
void *standin_kept(const void *address);

/* Write one line for each kernel and library call to a file from now on; an empty path ends it. */
void standin_log(const char *path);
/* A library call, for the log. */
void standin_note(const char *name);
/* Kernels launched since the library was loaded. */
long standin_launches(void);
/* Calls that wait for the card: of streams, events, the device, and copies to the host. */
long standin_waits(void);
