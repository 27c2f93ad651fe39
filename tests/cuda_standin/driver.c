/* A stand-in for libcuda: expandable segments. Addresses come from mmap, bytes of the card from the other library. */
#include "standin.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>

static int (*take)(size_t) = NULL;
static void (*give)(size_t) = NULL;

static int found(void) {
  if (!take) take = dlsym(RTLD_DEFAULT, "standin_take"), give = dlsym(RTLD_DEFAULT, "standin_give");
  return take && give;
}

int cuInit(unsigned flags) { return OK; }
int cuDeviceGet(int *device, int number) {
  *device = number;
  return OK;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = 0;
  return OK;
}
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  *flags = 0, *active = 1;
  return OK;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
  *context = (void *)0x77;
  return OK;
}
int cuCtxGetCurrent(void **context) {
  *context = (void *)0x77;
  return OK;
}
int cuGetErrorString(int error, const char **text) {
  *text = error == OUT_OF_MEMORY ? "out of memory" : "error of the stand-in";
  return OK;
}
int cuMemAddressReserve(uint64_t *address, size_t nbytes, size_t alignment, uint64_t wanted, uint64_t flags) {
  void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return OUT_OF_MEMORY;
  *address = (uint64_t)at;
  return OK;
}
int cuMemAddressFree(uint64_t address, size_t nbytes) {
  munmap((void *)address, nbytes);
  return OK;
}
int cuMemCreate(uint64_t *handle, size_t nbytes, const void *properties, uint64_t flags) {
  if (!found() || take(nbytes)) return OUT_OF_MEMORY;
  size_t *kept = malloc(sizeof *kept);
  *kept = nbytes;
  *handle = (uint64_t)kept;
  return OK;
}
int cuMemRelease(uint64_t handle) {
  give(*(size_t *)handle);
  free((void *)handle);
  return OK;
}
int cuMemMap(uint64_t address, size_t nbytes, size_t offset, uint64_t handle, uint64_t flags) { return OK; }
int cuMemSetAccess(uint64_t address, size_t nbytes, const void *descriptor, size_t count) { return OK; }
int cuMemUnmap(uint64_t address, size_t nbytes) {
  madvise((void *)address, nbytes, MADV_DONTNEED);
  return OK;
}
int cuMemGetAllocationGranularity(size_t *granularity, const void *properties, int option) {
  *granularity = (size_t)2 << 20;
  return OK;
}
