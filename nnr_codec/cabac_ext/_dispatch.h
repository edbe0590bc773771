/* Selection of vector code at run time. Functions marked NNR_AVX2 may be called only if nnr_has_avx2() is true. Other
   compilers and processors use plain code, which gives identical results. */
#ifndef NNR_DISPATCH_H
#define NNR_DISPATCH_H

#if defined(_MSC_VER) && !defined(__clang__)
#define NNR_INLINE static __forceinline
#else
#define NNR_INLINE static inline __attribute__((always_inline))
#endif

/* Fetches data to the cache; the address need not be valid. */
#if defined(__GNUC__) || defined(__clang__)
#define NNR_PREFETCH(address) __builtin_prefetch(address)
#else
#define NNR_PREFETCH(address) ((void)(address))
#endif

#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
#include <immintrin.h>
#define NNR_HAVE_AVX2 1
#define NNR_AVX2 __attribute__((target("avx2")))
static inline int nnr_has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") != 0;
}
#else
#define NNR_HAVE_AVX2 0
static inline int nnr_has_avx2(void) { return 0; }
#endif

#endif
