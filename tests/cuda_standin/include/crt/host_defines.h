/* What the CUDA headers of PyTorch's packages include and do not bring along: names for a plain C compiler. */
#pragma once
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __cudart_builtin__
#define __device__
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __host__
#define CUDARTAPI
#define CUDART_CB
