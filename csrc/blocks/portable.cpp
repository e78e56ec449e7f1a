// The looks of blocks/looks.h for one instruction set; see blocks/looks.inl.
#include <cstdint>
#include <cstring>

#include "blocks/looks.h"

namespace headlong {
namespace {

#include "blocks/plain.inl"
#include "blocks/one_by_one.inl"
#include "blocks/looks.inl"

}  // namespace

const Looks* portable_looks() {
    static const Looks table = {"portable", sixteen, ray, ray_nodes, closer, spread, listed, largest, taken, opened, closer_of};
    return &table;
}

}  // namespace headlong
