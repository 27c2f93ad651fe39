/* A stand-in for NVML: one card without links to others. */
#include <stddef.h>

enum { OK = 0, NOT_SUPPORTED = 3 };

int nvmlInit_v2(void) { return OK; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
  *device = (void *)1;
  return OK;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *found) {
  *count = 0;
  return OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = 13000;
  return OK;
}
int nvmlDeviceGetGpuFabricInfoV(void) { return NOT_SUPPORTED; }
