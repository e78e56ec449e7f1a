// LEMP (Teflioudi, Gemulla, Mykytiuk; SIGMOD 2015) by its authors' own library, for exact_rivals.py: nothing of it is here.
//
//   git clone https://github.com/uma-pi1/LEMP        Apache 2.0; Boost, Armadillo, libxml2, OpenBLAS and GSL are not in it
//   typedef uint16_t col_type (in its BasicStructs)        as LEMP asks for where rows have more than 255 coordinates
//   tar xzf GKlib.tgz, cmake -DCMAKE_C_FLAGS=-fPIC ... in it; then, with GKlib on both paths, cmake and `make ta` in LEMP/build
//   g++ -std=c++14 -O3 -march=native -fopenmp -fpermissive -w -fPIC -shared -DNDEBUG -DWITH_SIMD -DWITH_SIMD_INCR
//     -I LEMP -I LEMP/GKlib -I LEMP/build -I /usr/include/libxml2 lemp_calls.cpp -o lemp.so -L LEMP/build/mips -L LEMP/build/util
//     -lta -lrg -larmadillo -lgsl -lgslcblas -lboost_program_options -lboost_filesystem -lboost_system -lxml2
//
// Its runTopK makes what searches its buckets anew in every call, also for one query; that is in a call's time here.
// One thread. It tunes itself on the first queries that it is asked, if they are enough, and keeps what it found.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <omp.h>
#include <unistd.h>
#include <vector>

#include <boost/math/special_functions/beta.hpp>  // which LEMP uses and does not include
#include <gsl/gsl_rng.h>
#include <mips/mips.h>

namespace {

using Vectors = std::vector<std::vector<double>>;

Vectors vectors(const float* from, int64_t count, int64_t dim) {
  Vectors found(count);
  for (int64_t i = 0; i < count; ++i) found[i].assign(from + i * dim, from + (i + 1) * dim);
  return found;
}

class Calls : public mips::Lemp {
 public:
  using mips::Lemp::Lemp;
  uint64_t compared() const { return totalComparisons; }
  double seconds() const { return retrievalTime / 1e9; }
};

}  // namespace

extern "C" void* lemp_open(const float* rows, int64_t count, int64_t dim, int32_t k, int32_t cache) {
  std::cout.setstate(std::ios::failbit);  // it says much
  mips::InputArguments how;
  how.k = k, how.threads = 1, how.theta = 0, how.logFile = "/dev/null";
  auto* made = new Calls(how, cache, mips::LEMP_LI, true, 1.0, 0.0);
  mips::VectorMatrix layer(vectors(rows, count, dim));
  made->initialize(layer);
  return made;
}

// Ids `[count, k]`, in no order; returns the rows that were compared. `seconds` is its own clock, which leaves out what it
// does to a query before it searches.
extern "C" int64_t lemp_ask(void* opened, const float* queries, int64_t count, int64_t dim, int32_t k, int64_t* ids,
                            double* seconds) {
  auto* lemp = static_cast<Calls*>(opened);
  lemp->clearTimings();
  mips::VectorMatrix asked(vectors(queries, count, dim));
  mips::Results results;
  lemp->runTopK(asked, results);
  std::vector<int64_t> found(count, 0);
  for (const auto& part : results.resultsVector)
    for (const auto& one : part)
      if (found[one.i] < k) ids[one.i * k + found[one.i]++] = one.j;
  *seconds = lemp->seconds();
  return lemp->compared();
}
