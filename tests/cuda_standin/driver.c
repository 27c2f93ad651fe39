/* A stand-in for libcuda: expandable segments. Addresses and bytes of the card come from the other library. */
#include "standin.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>

static int (*take)(int, size_t) = NULL;
static void (*give)(int, size_t) = NULL;
static char *(*reserve)(size_t) = NULL;
static void (*release)(char *, size_t) = NULL;
static void *(*kept)(const void *) = NULL;

static int found(void) {
  if (!take) {
    give = dlsym(RTLD_DEFAULT, "standin_give");
    reserve = dlsym(RTLD_DEFAULT, "standin_reserve");
    release = dlsym(RTLD_DEFAULT, "standin_release");
    kept = dlsym(RTLD_DEFAULT, "standin_kept");
    take = dlsym(RTLD_DEFAULT, "standin_take");
  }
  return take && give && reserve && release && kept;
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
  char *at = found() ? reserve(nbytes) : NULL;
  if (!at) return OUT_OF_MEMORY;
  *address = (uint64_t)at;
  return OK;
}
int cuMemAddressFree(uint64_t address, size_t nbytes) {
  release((char *)address, nbytes);
  return OK;
}
typedef struct {
  int device;
  size_t nbytes;
} Pages;
int cuMemCreate(uint64_t *handle, size_t nbytes, const void *properties, uint64_t flags) {
  int device = ((const int *)properties)[3]; /* type, requestedHandleTypes, location.type, location.id */
  if (!found() || take(device, nbytes)) return OUT_OF_MEMORY;
  Pages *made = malloc(sizeof *made);
  *made = (Pages){device, nbytes};
  *handle = (uint64_t)made;
  return OK;
}
int cuMemRelease(uint64_t handle) {
  Pages *gone = (Pages *)handle;
  give(gone->device, gone->nbytes);
  free(gone);
  return OK;
}
int cuMemMap(uint64_t address, size_t nbytes, size_t offset, uint64_t handle, uint64_t flags) { return OK; }
int cuMemSetAccess(uint64_t address, size_t nbytes, const void *descriptor, size_t count) { return OK; }
int cuMemUnmap(uint64_t address, size_t nbytes) {
  madvise(kept((void *)address), nbytes, MADV_DONTNEED);
  return OK;
}
int cuMemGetAllocationGranularity(size_t *granularity, const void *properties, int option) {
  *granularity = (size_t)2 << 20;
  return OK;
}
