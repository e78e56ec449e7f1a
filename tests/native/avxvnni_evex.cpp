// The avxvnni scan in AVX-512's encoding of the same instruction, so that a server without AVX-VNNI can check its arithmetic.
#define avxvnni_scan avxvnni_evex_scan
#include "scan/avxvnni.cpp"
