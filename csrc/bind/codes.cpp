// The Python face of rotated codes: what the scan takes for granted is checked here, once.
#include "bind/arguments.h"

#include <nanobind/stl/tuple.h>

#include <cmath>

#include "codes/rotated.h"

namespace headlong {
namespace {

// start, stop, bits, planes; and the bounds that CodeSegment names
using SegmentRecord = std::tuple<int64_t, int64_t, int, int, double, double, double, double>;

class BoundCodes {
  public:
    // executor: reads the layer's own rows, and lives as long; tiles [tiles, bytes]; rotation [panels, dim, 32]
    BoundCodes(nb::object executor, Bytes tiles, Doubles mean, Doubles centre, Floats rotation, const nb::sequence& given, double lost,
               double most_base, const std::string& isa)
        : kept_{executor, nb::cast(tiles), nb::cast(mean), nb::cast(centre), nb::cast(rotation)} {
        Codes& c = codes_;
        c.rows = static_cast<const Executor*>(nb::cast<nb::capsule>(executor.attr("capsule")).data(kExecutorCapsule));
        c.scan = level_of(isa).scan;
        const int64_t dim = c.rows->dim;
        check(static_cast<int64_t>(mean.size()) == dim && static_cast<int64_t>(centre.size()) == dim, "mean and centre must be [dim]");
        check(nb::len(given) > 0 && nb::len(given) <= kMostSegments, "1 to 16 segments");
        std::vector<SegmentRecord> segments;  // made here: where nanobind makes it, memory that runs out ends the process
        for (nb::handle one : given) segments.push_back(nb::cast<SegmentRecord>(one));
        int bits[kMostSegments];
        int64_t coordinates[kMostSegments], at = 0;
        for (size_t s = 0; s < segments.size(); ++s) {
            const auto& [start, stop, width, planes, code_norm, most, x_error, row_error] = segments[s];
            check(start == at && stop - start >= 2 && stop <= dim, "segments follow one another");
            check((width >= 1 && width <= 6) || width == 8, "codes have 1 to 6 or 8 bits");
            check(planes == 1 || planes == 2, "a query has one or two planes");
            for (double bound : {code_norm, most, x_error, row_error}) check(bound >= 0 && std::isfinite(bound), "a bound is finite");
            bits[s] = width, coordinates[s] = stop - start, at = stop;
            c.segments.push_back({stop - start, c.width, planes, code_norm, most, x_error, row_error});
            c.width += (stop - start + 31) / 32 * 32;
        }
        check(at == dim, "segments hold every coordinate");
        check(lost >= 0 && std::isfinite(lost) && most_base >= 0 && std::isfinite(most_base), "a bound is finite");
        c.lost = lost, c.most_base = most_base;
        c.layout.set(c.layout.segments = static_cast<int>(segments.size()), bits, coordinates);
        c.count = (c.rows->vocab + kTile - 1) / kTile;
        check(is_matrix(tiles, c.count, c.layout.bytes), "tiles must be [tiles, bytes]");
        check(reinterpret_cast<uintptr_t>(tiles.data()) % alignof(float) == 0, "tiles hold float32");
        check(rotation.ndim() == 3 && static_cast<int64_t>(rotation.shape(0)) * kPanel == c.width && static_cast<int64_t>(rotation.shape(1)) == dim &&
                  static_cast<int64_t>(rotation.shape(2)) == kPanel,
              "rotation must be [panels, dim, 32]");
        c.unit = power_near(largest_of_tiles(tiles.data(), c.count, c.layout));
        c.tiles = tiles.data(), c.mean = mean.data(), c.centre = centre.data(), c.rotation = rotation.data();
    }

    // The estimates of all classes [batch, tiles * 64] and their radii, at kappa standard deviations or, at 0, for certain: for tests.
    nb::tuple estimates(Doubles hidden, double kappa, uint64_t seed) const {
        const int64_t batch = batch_of(hidden, codes_.rows->dim);
        const size_t padded = codes_.count * kTile;
        std::vector<float> est(batch * padded), radius(batch * padded);
        const PreparedCodes all = prepare_codes(codes_, hidden.data(), batch, seed, 1);
        for (const CodeGroup& group : all.groups)
            for (int64_t t = 0; t < codes_.count; ++t) {
                alignas(64) float some[kLanes * kTile], upper[kTile], radii[kMostLanes];
                codes_.scan->estimate(codes_.tile(t), codes_.layout, group.passes.data(), static_cast<int>(group.passes.size()), group.lanes, codes_.layout.bytes, some);
                const ScanRadii all_radii = radii_of(codes_, &all.queries[group.first], group.n, kappa);
                codes_.scan->radii(codes_.tile(t), codes_.layout, all_radii, 0, radii, nullptr, nullptr);
                for (int q = 0; q < group.n; ++q) {
                    const int64_t to = (group.first + q) * static_cast<int64_t>(padded) + t * kTile;
                    codes_.scan->reach(some + q * kTile, codes_.shares(t), radii[q], -1e38f, upper);
                    for (int i = 0; i < kTile; ++i) {
                        est[to + i] = some[q * kTile + i] + static_cast<float>(all.queries[group.first + q].add);
                        radius[to + i] = upper[i] - some[q * kTile + i] + all_radii.constant[q];
                    }
                }
            }
        return nb::make_tuple(owned(std::move(est), {static_cast<size_t>(batch), padded}), owned(std::move(radius), {static_cast<size_t>(batch), padded}));
    }

    nb::capsule capsule() const { return nb::capsule(&codes_, kCodesCapsule); }

  private:
    // The largest of the numbers that radii are made of.
    static double largest_of_tiles(const uint8_t* tiles, int64_t count, const TileLayout& layout) {
        float largest = 0, own[2 * kMostSegments];
        for (int64_t t = 0; t < count; ++t) {
            std::memcpy(own, tiles + t * layout.bytes + layout.largest, static_cast<size_t>(layout.segments) * 8);
            for (int i = 0; i < 2 * layout.segments; ++i) {
                check(own[i] >= 0 && std::isfinite(own[i]), "radii of tiles are finite");
                largest = std::max(largest, own[i]);
            }
        }
        return largest;
    }

    std::vector<nb::object> kept_;
    Codes codes_;
};

}  // namespace

void bind_codes(nb::module_& m) {
    nb::class_<BoundCodes>(m, "Codes")
        .def(nb::init<nb::object, Bytes, Doubles, Doubles, Floats, const nb::sequence&, double, double, const std::string&>(), nb::arg("executor"),
             nb::arg("tiles"), nb::arg("mean"), nb::arg("centre"), nb::arg("rotation"), nb::arg("segments"), nb::arg("lost"), nb::arg("most_base"), nb::arg("isa"))
        .def("estimates", &BoundCodes::estimates, nb::arg("hidden"), nb::arg("kappa"), nb::arg("seed"))
        .def_prop_ro("capsule", &BoundCodes::capsule);
}

}  // namespace headlong
