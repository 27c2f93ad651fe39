/* A stand-in for cuBLAS and cuBLASLt: handles and descriptors exist, products are logged (build.py) and not computed. */
#include "standin.h"

#include <stdlib.h>
#include <string.h>

static int new_handle(void **handle) {
  *handle = calloc(1, 512);
  return OK;
}
static int gone(void *handle) {
  free(handle);
  return OK;
}

int cublasCreate_v2(void **handle) {
  standin_note("cublasCreate");
  return new_handle(handle);
}
int cublasDestroy_v2(void *handle) { return gone(handle); }
int cublasGetMathMode(void *handle, int *mode) {
  *mode = 0;
  return OK;
}
int cublasGetPointerMode_v2(void *handle, int *mode) {
  *mode = 0;
  return OK;
}
int cublasSetStream_v2(void *handle, void *stream) { return OK; }
int cublasSetMathMode(void *handle, int mode) { return OK; }
int cublasSetPointerMode_v2(void *handle, int mode) { return OK; }
int cublasSetWorkspace_v2(void *handle, void *workspace, size_t nbytes) { return OK; }

int cublasLtCreate(void **handle) { return new_handle(handle); }
int cublasLtMatmulDescCreate(void **made, int compute, int scale) { return new_handle(made); }
int cublasLtMatmulPreferenceCreate(void **made) { return new_handle(made); }
int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t columns, int64_t stride) {
  return new_handle(made);
}
int cublasLtMatmulDescDestroy(void *made) { return gone(made); }
int cublasLtMatmulPreferenceDestroy(void *made) { return gone(made); }
int cublasLtMatrixLayoutDestroy(void *made) { return gone(made); }
int cublasLtMatmulDescSetAttribute(void *made, int attribute, const void *value, size_t nbytes) { return OK; }
int cublasLtMatmulPreferenceSetAttribute(void *made, int attribute, const void *value, size_t nbytes) { return OK; }
int cublasLtMatrixLayoutSetAttribute(void *made, int attribute, const void *value, size_t nbytes) { return OK; }

/* As cublasLtMatmulHeuristicResult_t of cublasLt.h. */
typedef struct {
  uint64_t algorithm[8];
  size_t workspace_nbytes;
  int state;
  float waves;
  int reserved[4];
} Heuristic;

int cublasLtMatmulAlgoGetHeuristic(
    void *handle, void *matmul, void *a, void *b, void *c, void *d, void *preference, int wanted, Heuristic *found,
    int *count) {
  memset(found, 0, sizeof *found);
  *count = 1;
  return OK;
}
