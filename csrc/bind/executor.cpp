// The arrays of an executor, from Python: what kernels and resolvers take for granted is checked here, once.
#include <algorithm>

#include "bind/arguments.h"
#include "bind/link.h"
#include "executor/executor.h"

namespace headlong {
namespace {

class BoundExecutor {
  public:
    // preview: (rotation [dim, width], columns [vocab, width], base [padded], rows that are scored), or None
    BoundExecutor(AnyArray weight, const std::string& kind, std::optional<Floats> bias, Floats norms, nb::tuple link, std::optional<nb::tuple> preview,
                  const std::string& isa) {
        Executor& e = executor_;
        const Level& level = level_of(isa);
        e.isa = level.name, e.kernels = level.kernels;
        const StoredRows rows = rows_of(weight, kind);
        e.weight = rows.data, e.kind = rows.kind, e.vocab = rows.vocab, e.dim = rows.dim;
        check(e.vocab > 0 && e.dim > 0, "a layer has at least one class and one coordinate");
        check(e.vocab < (int64_t{1} << 31) - kBlock, "a layer has fewer than 2^31 classes");
        e.padded = in_blocks(e.vocab);
        keep(weight);
        check(static_cast<int64_t>(norms.size()) == e.vocab, "norms must be [vocab]");
        for (int64_t i = 0; i < e.vocab; ++i) {
            check(std::isfinite(norms.data()[i]), "a row of the weight is not finite");
            e.most_norm = std::max(e.most_norm, static_cast<double>(norms.data()[i]));
        }
        e.norms = padded(norms.data(), [](float x) { return x; });
        if (bias) {
            check(static_cast<int64_t>(bias->size()) == e.vocab, "bias must be [vocab]");
            e.bias = bias->data();
            e.base = padded(e.bias, [](float x) { return x; });
            e.base_error = padded(e.bias, [](float x) { return std::fabs(x) * (0x1p-22f * (1 + 0x1p-18f)); });
            keep(*bias);
        }
        set_link(link, e, kept_, arrays_);
        if (preview) set_preview(*preview);
    }

    nb::capsule capsule() const { return nb::capsule(&executor_, kExecutorCapsule); }

  private:
    template <typename A>
    void keep(const A& array) {
        kept_.push_back(nb::cast(array));
    }

    // Numbers of every class, made up to whole blocks by zeros.
    template <typename Make>
    const float* padded(const float* values, const Make& make) {
        arrays_.emplace_back(executor_.padded, 0.f);
        std::transform(values, values + executor_.vocab, arrays_.back().begin(), make);
        return arrays_.back().data();
    }

    void set_preview(const nb::tuple& preview) {
        check(nb::len(preview) == 4, "a preview is (rotation, columns, base, rows)");
        const auto rotation = nb::cast<AnyArray>(preview[0]);
        const auto columns = nb::cast<Floats>(preview[1]), base = nb::cast<Floats>(preview[2]);
        Preview& to = executor_.preview;
        to.budget = nb::cast<int64_t>(preview[3]);
        check(to.budget > 0, "a preview scores some rows");
        check(rotation.ndim() == 2 && static_cast<int64_t>(rotation.shape(0)) == executor_.dim && (rotation.itemsize() == 2 || rotation.itemsize() == 4),
              "rotation must be [dim, width] float16 or float32");
        to.width = static_cast<int64_t>(rotation.shape(1));
        check(columns.ndim() == 2 && static_cast<int64_t>(columns.shape(0)) == executor_.vocab && static_cast<int64_t>(columns.shape(1)) == to.width,
              "columns must be [vocab, width]");
        check(static_cast<int64_t>(base.size()) == executor_.padded, "base must be [padded vocab]");
        to.rotation = rotation.data(), to.rotation_kind = rotation.itemsize() == 2 ? Kind::f16 : Kind::f32;
        to.columns = columns.data(), to.base = base.data();
        keep(rotation), keep(columns), keep(base);
    }

    Executor executor_;
    std::vector<nb::object> kept_;
    std::vector<std::vector<float>> arrays_;
};

}  // namespace

void bind_executor(nb::module_& m) {
    nb::class_<BoundExecutor>(m, "Executor")
        .def(nb::init<AnyArray, const std::string&, std::optional<Floats>, Floats, nb::tuple, std::optional<nb::tuple>, const std::string&>(), nb::arg("weight"),
             nb::arg("kind"), nb::arg("bias").none(), nb::arg("norms"), nb::arg("link"), nb::arg("preview").none(), nb::arg("isa"))
        .def_prop_ro("capsule", &BoundExecutor::capsule);
}

}  // namespace headlong
