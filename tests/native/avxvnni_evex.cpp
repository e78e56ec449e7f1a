// The avxvnni kernels in AVX-512's encoding of the same instruction, so that a server without AVX-VNNI can check their arithmetic.
#define avxvnni_kernels avxvnni_evex_kernels
#define avxvnni_features avxvnni_evex_features
#include "kernels/avxvnni.cpp"
