/* Vector code that is chosen when the program runs. A function marked NNR_AVX2 may be called where nnr_has_avx2();
   compilers that cannot do this have plain code alone, which gives the same results. */
#ifndef NNR_DISPATCH_H
#define NNR_DISPATCH_H

#if defined(_MSC_VER) && !defined(__clang__)
#define NNR_INLINE static __forceinline
#else
#define NNR_INLINE static inline __attribute__((always_inline))
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
